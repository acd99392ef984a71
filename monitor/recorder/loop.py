"""The recording loop: poll, write, wait for the next deadline. Nothing that happens ends it."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

from monitor.logs import gutil, log_events
from monitor.logs.sample import NO_READINGS, GpuSample, HostSample, RankSample, Reading, Row
from rundir.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monitor.logs.log_events import LogEvent
    from monitor.recorder.sink import Sink
    from monitor.stop import ProcessStop, Reason

_Reading = TypeVar("_Reading")
_MAX_EVENTS = 256  # that wait for a disk to have room


class SystemClock:
    """The time of day, and the time that deadlines are kept by."""

    def now(self) -> datetime:
        """Local time, with its offset from UTC."""
        return datetime.now().astimezone()

    def monotonic_s(self) -> float:
        """Seconds that never jump."""
        return time.monotonic()


def no_ranks(reading: Reading) -> Sequence[RankSample]:
    """Give each GPU a sample without a reading: no rank trains here, or it is unknown."""
    return [RankSample() for _ in reading.gpus]


@dataclass
class Recorder:
    """Writes a row per GPU and interval; what reads GPUs, host and ranks polls them once."""

    gpus: Callable[[], Reading]
    host: Callable[[], HostSample]
    log: Sink
    layout: gutil.Layout
    clock: SystemClock
    facts: tuple[tuple[str, str], ...]
    emit: Callable[[str], None]
    """Writes a line for a person; each kind of trouble once."""
    ranks: Callable[[Reading], Sequence[RankSample]] = no_ranks
    see: Callable[[Reading], None] = lambda _reading: None
    _num_rows: int = field(default=0, init=False)
    _num_lost: int = field(default=0, init=False)
    """Samples that there was no room for, since the last `lost` line."""
    _headed: bool = field(default=False, init=False)
    _reported: set[str] = field(default_factory=set, init=False)
    _written_facts: dict[str, str] = field(default_factory=dict, init=False)
    _events: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_EVENTS), init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    """Held while the log is written to: other threads report events."""

    def run(self, stop: ProcessStop, interval_s: float) -> Reason:
        """Record at once, then every `interval_s`, and a last time at the end.

        Deadlines are counted from the start, so a slow poll delays none but its own; one that is
        missed altogether is left out.
        """
        self._head()
        start_s = self.clock.monotonic_s()
        while True:
            self._cycle()
            elapsed_s = self.clock.monotonic_s() - start_s
            next_s = (elapsed_s // interval_s + 1) * interval_s
            reason = stop.wait(next_s - elapsed_s)
            if reason is not None:
                self._cycle()
                return reason

    def report(self, event: LogEvent) -> None:
        """Write down what happened, at once; from any thread. What cannot be kept comes later."""
        line = log_events.line(event)
        with self._lock:
            if not (self._headed and self.log.append(line)):
                self._events.append(line)

    def _head(self) -> None:
        """Write the header lines and what is known before any GPU was asked: at once."""
        with self._lock:
            self._headed = self.log.append(self.layout.header() + self._new_facts(self.facts))
        if self._headed:
            self._written_facts |= dict(self.facts)

    def _cycle(self) -> None:
        self._tried("a sample failed: {}: going on without it", self._record, lambda _error: None)

    def _record(self) -> None:
        now = self.clock.now()
        reading = self._tried(
            "GPUs: {}: their readings stay empty",
            self._read_gpus,
            lambda error: Reading(facts=(("gpus", f"{NO_READINGS}: {error}"),)),
        )
        facts = self.facts + _offset_fact(now) + reading.facts
        host = self._tried(
            "host: {}: its readings stay empty", self.host, lambda _error: HostSample()
        )
        if not reading.gpus:
            reading = replace(reading, gpus=(GpuSample(),))
        ranks = self._tried(
            "ranks: {}: their readings stay empty",
            lambda: self.ranks(reading),
            lambda _error: no_ranks(reading),
        )
        clock = now.replace(tzinfo=None)
        rows = [Row(clock, gpu, host, rank) for gpu, rank in zip(reading.gpus, ranks, strict=True)]
        with self._lock:
            self._append(facts + _process_facts(rows), rows)

    def _append(self, facts: tuple[tuple[str, str], ...], rows: Sequence[Row]) -> None:
        """Write rows, and before them what is new; in a new file everything is."""
        if self.log.turn():
            self._headed, self._num_rows, self._written_facts = False, 0, {}
        head = "" if self._headed else self.layout.header()
        news = self._new_facts(facts) + self._lost_line() + "".join(self._events)
        if self.log.append(head + news + self.layout.block(rows, self._num_rows)):
            self._headed = True
            self._num_rows += len(rows)
            self._written_facts |= dict(facts)
            self._events.clear()
            self._num_lost = 0
        else:
            self._num_lost += 1

    def _read_gpus(self) -> Reading:
        reading = self.gpus()
        self.see(reading)
        return reading

    def _tried(
        self, message: str, read: Callable[[], _Reading], otherwise: Callable[[str], _Reading]
    ) -> _Reading:
        """Go on with something else where reading fails: the monitor never fails the job."""
        try:
            return read()
        except Exception as error:  # noqa: BLE001 - as said
            text = f"{type(error).__name__}: {error}"
            whole = message.format(text)
            if whole not in self._reported:
                self._reported.add(whole)
                self.emit(whole)
            return otherwise(text)

    def _lost_line(self) -> str:
        text = f"{counted(self._num_lost, 'sample')} could not be written"
        return gutil.comment("lost", text) if self._num_lost else ""

    def _new_facts(self, facts: tuple[tuple[str, str], ...]) -> str:
        new = [(key, value) for key, value in facts if self._written_facts.get(key) != value]
        return "".join(gutil.comment(key, value) for key, value in new)


def _process_facts(rows: Sequence[Row]) -> tuple[tuple[str, str], ...]:
    """Name the processes on each GPU, where they are known."""
    return tuple(
        (f"processes {row.gpu.index}", row.rank.processes) for row in rows if row.rank.processes
    )


def _offset_fact(now: datetime) -> tuple[tuple[str, str], ...]:
    """Give the offset from UTC, which the rows do not have."""
    offset = now.utcoffset() or timedelta()
    minutes = int(offset.total_seconds()) // 60
    sign = "-" if minutes < 0 else "+"
    return (("utc_offset", f"{sign}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"),)
