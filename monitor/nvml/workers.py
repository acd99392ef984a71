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

    from monitor.stop import Stop

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
    """The calls of one poll, and which worker makes them.

    Worker and caller share it without a lock, for a lock a call costs as much as the call: each
    sets its own attributes, and in an order that leaves no gap (see `leave`).
    """

    __slots__ = ("done", "is_over", "jobs", "skipped", "start", "values", "worker")

    def __init__(self, jobs: Sequence[Job], values: Mapping[int, Values]) -> None:
        self.jobs = jobs
        self.values = values
        self.worker: _Worker | None = None
        """A worker makes no further call once it is not this one."""
        self.start = 0
        """Where the worker begins."""
        self.skipped: set[int] = set()
        """Owners that are asked nothing more."""
        self.is_over = False
        self.done: queue.SimpleQueue[None] = queue.SimpleQueue()

    def begin(self, worker: _Worker) -> None:
        """Give the calls that are left to a worker."""
        worker.at, self.worker = -1, worker
        worker.inbox.put(self)

    def leave(self, worker: _Worker) -> Job | None:
        """Take the calls away from a worker: the one that hangs, or None if it came back just now.

        The call is marked first and the worker checked then; the worker, when it leaves, says so
        first and takes the mark away then. So no mark stays on a call that is back.
        """
        self.worker = None
        at = worker.at
        self.start = at + 1
        job = self.jobs[at]
        job.is_stuck = True
        if not (worker.has_left or self.is_over):
            return job
        job.is_stuck = False
        return None


class _Worker:
    """A thread that makes calls until it gets stuck in one."""

    def __init__(self, name: str) -> None:
        self.at = -1
        self.has_left = False
        self.inbox: queue.SimpleQueue[_Round] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        while not self.has_left:
            poll = self.inbox.get()
            met = self._make_calls(poll)
            self.has_left = poll.worker is not self
            poll.is_over = poll.is_over or not self.has_left
            for job in met:
                job.is_stuck = False  # it came back, if late
            if not self.has_left:
                poll.done.put(None)

    def _make_calls(self, poll: _Round) -> tuple[Job, ...]:
        """Make the calls that are left, as long as they are ours; those that may be marked."""
        jobs, values, skipped, last = poll.jobs, poll.values, poll.skipped, None
        for number in range(poll.start, len(jobs)):
            job = jobs[number]
            owner = job.owner
            if owner in skipped:
                continue
            self.at = number
            if poll.worker is not self:
                # taken away just now: this one is marked, or the one before
                return (job,) if last is None else (last, job)
            last = job
            try:
                if job.call(values[owner]):
                    skipped.add(owner)
            except Exception:  # noqa: BLE001, S110 - what went wrong has left no value
                pass
        return () if last is None else (last,)


class WorkerPool:
    """Makes the calls of a poll, and lets none of them hold up the caller."""

    def __init__(self, name: str, stop: Stop, report: Callable[[Job], None]) -> None:
        self._name = name
        self._stop = stop
        self._report = report
        self._worker: _Worker | None = None
        self._hung: list[Job] = []
        self._seen = (-1, 0.0)
        """Which call was made at the last check, and since when."""

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
            jobs = [job for job in jobs if not _is_hopeless(job, hung)]
        if not jobs:
            return
        poll = _Round(jobs, values)
        worker = self._worker = self._begin(poll)
        end_s = time.monotonic() + limit_s
        while not _is_done(poll):
            if self._stop.wait(_GLANCE_S):
                end_s = min(end_s, time.monotonic() + _LAST_S)
            is_late = time.monotonic() >= end_s
            if worker.at < 0 or not (is_late or self._is_slow(worker, poll, hung)):
                continue
            job = poll.leave(worker)
            if job is not None:
                self._give_up(job, hung, poll)
            self._worker = None
            if is_late:
                return
            worker = self._worker = self._begin(poll)

    def _begin(self, poll: _Round) -> _Worker:
        worker = self._worker or _Worker(self._name)
        self._seen = (-1, 0.0)
        poll.begin(worker)
        return worker

    def _is_slow(self, worker: _Worker, poll: _Round, hung: Sequence[Job]) -> bool:
        """Whether to wait for a call no longer; one that hangs elsewhere gets little time."""
        at, now_s = worker.at, time.monotonic()
        if self._seen[0] != at:
            self._seen = (at, now_s - _SLICE_S / 2)  # it began somewhere in the last slice
        job = poll.jobs[at]
        is_known = any(other.kind == job.kind for other in hung)
        return now_s - self._seen[1] >= (_SHORT_S if is_known else job.timeout_s)

    def _give_up(self, job: Job, hung: list[Job], poll: _Round) -> None:
        hung.append(job)
        if _is_out(job.owner, hung):
            poll.skipped.add(job.owner)
        self._report(job)


def _is_hopeless(job: Job, hung: Sequence[Job]) -> bool:
    return job.is_stuck or _is_out(job.owner, hung)


def _is_out(owner: int, hung: Sequence[Job]) -> bool:
    return sum(job.owner == owner for job in hung) >= _MAX_STUCK


def _is_done(poll: _Round) -> bool:
    try:
        poll.done.get(timeout=_SLICE_S)
    except queue.Empty:
        return False
    return True
