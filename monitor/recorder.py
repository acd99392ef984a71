"""The recording loop: look, write, wait for the next deadline. Nothing that happens ends it."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from monitor import gutil
from monitor.sample import GpuSample, HostSample, Reading, Row

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitor.sample import GpuSource, HostSource
    from monitor.stop import Reason, Stop

_SLICE_S = 0.05


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


class BoundedSource:
    """A source whose look may hang in the driver: after `limit_s` the GPUs count as silent.

    The look itself runs in a thread, so that a driver that answers nothing holds up neither the
    host's samples nor the end. While a look hangs no further one is begun.
    """

    def __init__(self, source: GpuSource, limit_s: float, stop: Stop, last_s: float = 0.6) -> None:
        """Bound `source`.

        Args:
            source: looked at in a thread of its own.
            limit_s: the longest that a look may hold up the recorder, in seconds.
            stop: cuts a look short.
            last_s: how long a look may take once it is time to stop, in seconds.

        """
        self._source = source
        self._limit_s = limit_s
        self._last_s = last_s
        self._stop = stop
        self._questions: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Reading | Exception] = queue.SimpleQueue()
        self._num_open = 0
        self._known = Reading()
        threading.Thread(target=self._work, name="nvml", daemon=True).start()

    def read(self) -> Reading:
        """Look once, within the limit.

        Raises:
            Exception: whatever the source raised.

        """
        if self._num_open:
            self._take(0)  # a look that came back too late tells of another moment: dropped
        answer = None if self._num_open else self._ask()
        if answer is None:
            silent = tuple(GpuSample(index=gpu.index) for gpu in self._known.gpus)
            why = (("gpus", f"no readings: no answer within {self._limit_s:g} s"),)
            return Reading(silent, self._known.facts or why)
        if isinstance(answer, Exception):
            raise answer
        self._known = answer
        return answer

    def _ask(self) -> Reading | Exception | None:
        self._questions.put(None)
        self._num_open = 1
        began_s = time.monotonic()
        while True:
            limit_s = self._last_s if self._stop.wait(0) else self._limit_s
            left_s = began_s + limit_s - time.monotonic()
            if left_s <= 0:
                return None
            answer = self._take(min(_SLICE_S, left_s))
            if answer is not None:
                return answer

    def _take(self, timeout_s: float) -> Reading | Exception | None:
        try:
            answer = self._answers.get(block=timeout_s > 0, timeout=timeout_s)
        except queue.Empty:
            return None
        self._num_open = 0
        return answer

    def _work(self) -> None:
        while True:
            self._questions.get()
            try:
                self._answers.put(self._source.read())
            except Exception as error:  # noqa: BLE001 - handed to the reader, which says it
                self._answers.put(error)


class Log(Protocol):
    """Where blocks of whole lines go."""

    num_lost: int

    def append(self, block: str) -> bool:
        """Write a block; False if it could not be kept."""
        ...


@dataclass
class Recorder:
    """Writes a row per GPU and interval.

    Args:
        gpus: looks at the GPUs.
        host: looks at the machine.
        log: takes the lines.
        layout: which columns.
        clock: tells the time.
        facts: what the head of the log says, as (key, value) pairs.
        say: tells a person; each kind of trouble once.

    """

    gpus: GpuSource
    host: HostSource
    log: Log
    layout: gutil.Layout
    clock: Clock
    facts: tuple[tuple[str, str], ...]
    say: Callable[[str], None]
    _num_rows: int = field(default=0, init=False)
    _headed: bool = field(default=False, init=False)
    _told: set[str] = field(default_factory=set, init=False)
    _written_facts: dict[str, str] = field(default_factory=dict, init=False)

    def run(self, stop: Stop, interval_s: float) -> Reason:
        """Record at once, then every `interval_s`, and a last time at the end.

        Deadlines are counted from the start, so a slow look delays none but its own; one that is
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

    def _head(self) -> None:
        """Write the header lines and what is known before any GPU was asked: at once."""
        self._headed = self.log.append(self.layout.header() + self._new_facts(self.facts))
        if self._headed:
            self._written_facts |= dict(self.facts)

    def _cycle(self) -> None:
        try:
            self._record()
        except Exception as error:  # noqa: BLE001 - the monitor never fails the job
            self._say_once(f"a sample failed: {type(error).__name__}: {error}: going on without it")

    def _record(self) -> None:
        now = self.clock.now()
        reading = self._read_gpus()
        facts = self.facts + _offset_fact(now) + reading.facts
        host = self._read_host()
        gpus = reading.gpus or (GpuSample(),)
        rows = [Row(now.replace(tzinfo=None), gpu, host) for gpu in gpus]
        head = "" if self._headed else self.layout.header()
        lost = self._lost_fact()
        block = head + self._new_facts(facts + lost) + self.layout.block(rows, self._num_rows)
        if self.log.append(block):
            self._headed = True
            self._num_rows += len(rows)
            self._written_facts |= dict(facts + lost)

    def _read_gpus(self) -> Reading:
        try:
            return self.gpus.read()
        except Exception as error:  # noqa: BLE001 - the monitor never fails the job
            self._say_once(f"GPUs: {type(error).__name__}: {error}: their readings stay empty")
            return Reading(facts=(("gpus", f"no readings: {type(error).__name__}: {error}"),))

    def _read_host(self) -> HostSample:
        try:
            return self.host.read()
        except Exception as error:  # noqa: BLE001 - the monitor never fails the job
            self._say_once(f"host: {type(error).__name__}: {error}: its readings stay empty")
            return HostSample()

    def _lost_fact(self) -> tuple[tuple[str, str], ...]:
        lost = self.log.num_lost
        return (("lost", f"{lost} samples could not be written"),) if lost else ()

    def _new_facts(self, facts: tuple[tuple[str, str], ...]) -> str:
        new = [(key, value) for key, value in facts if self._written_facts.get(key) != value]
        return "".join(gutil.comment(key, value) for key, value in new)

    def _say_once(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            self.say(message)


def _offset_fact(now: datetime) -> tuple[tuple[str, str], ...]:
    """Tell the offset from UTC, which the rows themselves do not."""
    offset = now.utcoffset() or timedelta()
    minutes = int(offset.total_seconds()) // 60
    sign = "-" if minutes < 0 else "+"
    return (("utc_offset", f"{sign}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"),)
