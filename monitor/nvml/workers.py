"""Calls that may hang, made one after the other by a thread; one that hangs costs only itself.

A poll is a list of calls. A thread makes them in order while the caller waits. A call that takes
too long is left to its thread, and another thread goes on with the next one; the call is not made
again before it has come back. So a poll costs one hand-over as long as nothing hangs.
"""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from monitor.stop import ProcessStop

Values = dict[str, Any]
"""Where a call leaves what it read, by field."""

if TYPE_CHECKING:
    Ask = Callable[[Values], bool | None]
    """Reads something into the values; True: nothing more is to be had of this owner."""

_SLICE_S = 0.05
_SHORT_S = 0.05  # for a call that hangs elsewhere already: PCIe counters honestly take 20 ms
_MAX_STUCK = 3  # of one owner: then it is the owner that hangs, and not its calls
_LAST_S = 0.6  # once it is time to stop
_GLANCE_S = 0.001  # long enough to see that the parent has died


@dataclass(eq=False, slots=True)
class Job:
    """One call of one owner (a GPU), and whether a thread is stuck in it."""

    owner: int
    kind: str
    """What is called; the same word for the same call of other owners."""
    call: Ask
    timeout_s: float = 0.5
    is_stuck: bool = False


class _Round:
    """The calls of one poll: a worker takes one after the other, until they are taken from it."""

    def __init__(self, jobs: Sequence[Job], values: Mapping[int, Values]) -> None:
        self.values = values
        self.skipped: set[int] = set()
        """Owners that are asked nothing more."""
        self.worker: _Worker | None = None
        """Whose the calls are that are left."""
        self.done = threading.Event()
        self._left = iter(jobs)
        self._current: Job | None = None
        self._since_s = 0.0
        self._lock = threading.Lock()

    def take(self, worker: _Worker, back: Job | None) -> Job | None:
        """Give a worker its next call, after one that has come back; None: it has no more."""
        with self._lock:
            if back is not None:
                back.is_stuck = False
            if worker is not self.worker:
                return None
            self._since_s = time.monotonic()
            self._current = next((job for job in self._left if job.owner not in self.skipped), None)
            if self._current is None:
                self.done.set()
            return self._current

    def running(self) -> tuple[Job, float] | None:
        """Return the call that is being made, and for how long; None: none is."""
        with self._lock:
            job = self._current
            return None if job is None else (job, time.monotonic() - self._since_s)

    def give_up(self, job: Job) -> bool:
        """Take the calls from their worker; False: this one has just come back."""
        with self._lock:
            if job is not self._current:
                return False
            job.is_stuck, self.worker, self._current = True, None, None
            return True


class _Worker:
    """A thread that makes calls until it gets stuck in one."""

    def __init__(self, name: str) -> None:
        self.inbox: queue.SimpleQueue[_Round] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        poll = self.inbox.get()
        while poll.worker is self:
            job: Job | None = None
            while job := poll.take(self, job):
                try:
                    if job.call(poll.values[job.owner]):
                        poll.skipped.add(job.owner)
                except Exception:  # noqa: BLE001, S110 - what went wrong has left no value
                    pass
            if poll.worker is self:
                poll = self.inbox.get()


class WorkerPool:
    """Makes the calls of a poll, and lets none of them hold up the caller."""

    def __init__(self, name: str, stop: ProcessStop, report: Callable[[Job], None]) -> None:
        self._name = name
        self._stop = stop
        self._report = report
        self._worker: _Worker | None = None
        self._hung: list[Job] = []

    @property
    def is_stuck(self) -> bool:
        """Whether any call has not come back yet."""
        return any(job.is_stuck for job in self._hung)

    def run(self, jobs: Sequence[Job], values: Mapping[int, Values], limit_s: float) -> None:
        """Make the calls, and wait for them at most `limit_s`; what hangs leaves no value.

        Args:
            jobs: the calls, in order.
            values: where the calls of each owner leave theirs; new ones for each poll, for a call
                that comes back late still leaves its own there.
            limit_s: for all of them.

        """
        hung = self._hung = [job for job in self._hung if job.is_stuck]
        jobs = [job for job in jobs if not (job.is_stuck or _is_out(job.owner, hung))]
        if not jobs:
            return
        poll = _Round(jobs, values)
        self._begin(poll)
        end_s = time.monotonic() + limit_s
        while not poll.done.wait(_SLICE_S):
            if self._stop.wait(_GLANCE_S):
                end_s = min(end_s, time.monotonic() + _LAST_S)
            is_late = time.monotonic() >= end_s
            running = poll.running()
            if running is None or not (is_late or _is_slow(*running, hung)):
                continue
            job, _ = running
            if not poll.give_up(job):
                continue
            self._worker = None
            hung.append(job)
            if _is_out(job.owner, hung):
                poll.skipped.add(job.owner)
            self._report(job)
            if is_late:
                return
            self._begin(poll)

    def _begin(self, poll: _Round) -> None:
        """Give the calls that are left to a worker."""
        self._worker = poll.worker = self._worker or _Worker(self._name)
        poll.worker.inbox.put(poll)


def _is_slow(job: Job, took_s: float, hung: Sequence[Job]) -> bool:
    """Whether to wait for a call no longer; one that hangs elsewhere gets little time."""
    is_known = any(other.kind == job.kind for other in hung)
    return took_s >= (_SHORT_S if is_known else job.timeout_s)


def _is_out(owner: int, hung: Sequence[Job]) -> bool:
    return sum(job.owner == owner for job in hung) >= _MAX_STUCK
