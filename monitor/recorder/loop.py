"""The recording loop: poll, write, wait for the next deadline. Nothing that happens ends it."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from monitor.logs import gutil, log_events
from monitor.logs.sample import GpuSample, HostSample, RankSample, Reading, Row
from rundir.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monitor.logs.log_events import LogEvent
    from monitor.logs.sample import GpuSource, HostSource, RankSource
    from monitor.stop import Reason, Stop

_MAX_EVENTS = 256  # that wait for a disk to have room


class Clock(Protocol):
    """The time of day, and the time that deadlines are kept by."""

    def now(self) -> datetime:
        """Local time, with its offset from UTC."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never jump."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        """Local time, with its offset from UTC."""
        return datetime.now().astimezone()

    def monotonic_s(self) -> float:
        """Seconds that never jump."""
        return time.monotonic()


class Log(Protocol):
    """Where blocks of whole lines go."""

    def append(self, block: str) -> bool:
        """Write a block; False if it could not be kept."""
        ...

    def turn(self) -> bool:
        """Change the file where that is due; True: what comes next is first in a new one."""
        ...


class _NoRanks:
    """No rank trains here, or it is unknown."""

    def read(self, reading: Reading) -> list[RankSample]:
        return [RankSample() for _ in reading.gpus]


@dataclass
class Recorder:
    """Writes a row per GPU and interval.

    Args:
        gpus: reads the GPUs.
        host: reads the machine.
        log: takes the lines.
        layout: which columns.
        clock: gives the time.
        facts: what the head of the log says, as (key, value) pairs.
        emit: writes a line for a person; each kind of trouble once.
        ranks: which rank is on which GPU.

    """

    gpus: GpuSource
    host: HostSource
    log: Log
    layout: gutil.Layout
    clock: Clock
    facts: tuple[tuple[str, str], ...]
    emit: Callable[[str], None]
    ranks: RankSource = field(default_factory=_NoRanks)
    _num_rows: int = field(default=0, init=False)
    _num_lost: int = field(default=0, init=False)
    """Samples that there was no room for."""
    _headed: bool = field(default=False, init=False)
    _reported: set[str] = field(default_factory=set, init=False)
    _written_facts: dict[str, str] = field(default_factory=dict, init=False)
    _events: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_EVENTS), init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    """Owners while the log is written to: events are reported by other threads."""

    def run(self, stop: Stop, interval_s: float) -> Reason:
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
        try:
            self._record()
        except Exception as error:  # noqa: BLE001 - the monitor never fails the job
            self._emit_once(
                f"a sample failed: {type(error).__name__}: {error}: going on without it"
            )

    def _record(self) -> None:
        now = self.clock.now()
        reading = self._read_gpus()
        facts = self.facts + _offset_fact(now) + reading.facts
        host = self._read_host()
        if not reading.gpus:
            reading = replace(reading, gpus=(GpuSample(),))
        ranks = self._read_ranks(reading)
        clock = now.replace(tzinfo=None)
        rows = [Row(clock, gpu, host, rank) for gpu, rank in zip(reading.gpus, ranks, strict=True)]
        with self._lock:
            self._append(facts + _process_facts(rows) + self._lost_fact(), rows)

    def _append(self, facts: tuple[tuple[str, str], ...], rows: Sequence[Row]) -> None:
        """Write rows, and before them what is new; in a new file everything is."""
        if self.log.turn():
            self._headed, self._num_rows, self._written_facts = False, 0, {}
        head = "" if self._headed else self.layout.header()
        facts_and_events = self._new_facts(facts) + "".join(self._events)
        if self.log.append(head + facts_and_events + self.layout.block(rows, self._num_rows)):
            self._headed = True
            self._num_rows += len(rows)
            self._written_facts |= dict(facts)
            self._events.clear()
        else:
            self._num_lost += 1

    def _read_gpus(self) -> Reading:
        try:
            return self.gpus.read()
        except Exception as error:  # noqa: BLE001 - the monitor never fails the job
            self._emit_once(f"GPUs: {type(error).__name__}: {error}: their readings stay empty")
            return Reading(facts=(("gpus", f"no readings: {type(error).__name__}: {error}"),))

    def _read_host(self) -> HostSample:
        try:
            return self.host.read()
        except Exception as error:  # noqa: BLE001 - the monitor never fails the job
            self._emit_once(f"host: {type(error).__name__}: {error}: its readings stay empty")
            return HostSample()

    def _read_ranks(self, reading: Reading) -> Sequence[RankSample]:
        try:
            return self.ranks.read(reading)
        except Exception as error:  # noqa: BLE001 - the monitor never fails the job
            self._emit_once(f"ranks: {type(error).__name__}: {error}: their readings stay empty")
            return _NoRanks().read(reading)

    def _lost_fact(self) -> tuple[tuple[str, str], ...]:
        text = f"{counted(self._num_lost, 'sample')} could not be written"
        return (("lost", text),) if self._num_lost else ()

    def _new_facts(self, facts: tuple[tuple[str, str], ...]) -> str:
        new = [(key, value) for key, value in facts if self._written_facts.get(key) != value]
        return "".join(gutil.comment(key, value) for key, value in new)

    def _emit_once(self, message: str) -> None:
        if message not in self._reported:
            self._reported.add(message)
            self.emit(message)


def _process_facts(rows: Sequence[Row]) -> tuple[tuple[str, str], ...]:
    """Return who computes on each GPU, where that is known."""
    return tuple(
        (f"processes {row.gpu.index}", row.rank.processes) for row in rows if row.rank.processes
    )


def _offset_fact(now: datetime) -> tuple[tuple[str, str], ...]:
    """Return the offset from UTC, which the rows themselves do not."""
    offset = now.utcoffset() or timedelta()
    minutes = int(offset.total_seconds()) // 60
    sign = "-" if minutes < 0 else "+"
    return (("utc_offset", f"{sign}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"),)
