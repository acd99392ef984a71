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
_CHECK_S = 0.001  # long enough to see that the parent has died


@dataclass(eq=False, slots=True)
class Job:
    """One call of one owner (a GPU)."""

    owner: int
    kind: str
    """What is called; the same word for the same call of other owners."""
    call: Ask
    timeout_s: float = 0.5
    worker: _Worker | None = None
    """That was left alone with it."""

    @property
    def is_stuck(self) -> bool:
        """Whether it was given up and has not come back yet."""
        return self.worker is not None and self.worker.current is self


class _Round:
    """The calls of one poll. There is no lock, for one a call costs as much as all the rest."""

    def __init__(self, jobs: Sequence[Job], values: Mapping[int, Values]) -> None:
        self.left = iter(jobs)
        self.values = values
        self.skipped: set[int] = set()
        """Owners that are asked nothing more."""
        self.worker: _Worker | None = None
        """Who makes the calls that are left; any other makes no further one."""
        self.done = threading.Event()


class _Worker:
    """A thread that makes calls until it gets stuck in one."""

    def __init__(self, name: str) -> None:
        self.current: Job | None = None
        self.since_s = 0.0
        """When it began the current call, monotonic."""
        self.inbox: queue.SimpleQueue[_Round] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        while True:
            poll = self.inbox.get()
            self._make_calls(poll)
            self.current = None
            if poll.worker is not self:
                return  # it came back late
            poll.done.set()

    def _make_calls(self, poll: _Round) -> None:
        """Make the calls that are left, as long as they are ours."""
        values, skipped, monotonic_s = poll.values, poll.skipped, time.monotonic
        for job in poll.left:
            owner = job.owner
            if owner in skipped:
                continue
            self.since_s = monotonic_s()
            self.current = job
            if poll.worker is not self:
                return
            try:
                if job.call(values[owner]):
                    skipped.add(owner)
            except Exception:  # noqa: BLE001, S110 - what went wrong has left no value
                pass
            if poll.worker is not self:  # before the next call is taken from who makes it now
                return


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
        if hung:
            jobs = [job for job in jobs if not (job.is_stuck or _is_out(job.owner, hung))]
        if not jobs:
            return
        poll = _Round(jobs, values)
        worker = self._begin(poll)
        end_s = time.monotonic() + limit_s
        while not poll.done.wait(_SLICE_S):
            if self._stop.wait(_CHECK_S):
                end_s = min(end_s, time.monotonic() + _LAST_S)
            is_late = time.monotonic() >= end_s
            job, took_s = worker.current, time.monotonic() - worker.since_s
            if job is None or not (is_late or _is_slow(job, took_s, hung)):
                continue
            self._worker = poll.worker = None
            job.worker = worker
            hung.append(job)
            if _is_out(job.owner, hung):
                poll.skipped.add(job.owner)
            self._report(job)
            if is_late:
                return
            worker = self._begin(poll)

    def _begin(self, poll: _Round) -> _Worker:
        """Give the calls that are left to a worker."""
        worker = self._worker = poll.worker = self._worker or _Worker(self._name)
        worker.inbox.put(poll)
        return worker


def _is_slow(job: Job, took_s: float, hung: Sequence[Job]) -> bool:
    """Whether to wait for a call no longer; one that hangs elsewhere gets little time."""
    is_known = any(other.kind == job.kind for other in hung)
    return took_s >= (_SHORT_S if is_known else job.timeout_s)


def _is_out(owner: int, hung: Sequence[Job]) -> bool:
    return sum(job.owner == owner for job in hung) >= _MAX_STUCK
