"""One growing log of a live view: its facts and events, and the last readings of its GPUs."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from monitor.logs.decode import NO_TIME, decode
from monitor.logs.follow import GrowingLog
from monitor.logs.gutil import parse_number
from monitor.logs.newest import longest_s

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from monitor.logs.decode import Rows
    from monitor.logs.log_events import LogEvent
    from monitor.logs.parser import Stretch

TAIL_BYTES = 2**17
"""Of a log that is larger: some 70 samples of 8 GPUs."""

_HEAD_BYTES = 2**13
_NUM_EVENTS = 50
_DAY_S = 86_400
CAPACITY = 240
"""Samples: an hour at 15 s, four minutes at 1 s."""


class Track:
    """The last readings of a GPU, or of a node without one, by column; the oldest are forgotten.

    Args:
        host: the node.
        gpu: its index there; None: the node has no GPU.
        job: None: the log states none.
        facts: the `##` lines of its log, kept up to date by its reader.

    """

    def __init__(
        self, host: str, gpu: int | None, job: str | None, facts: Mapping[str, str]
    ) -> None:
        self.host = host
        self.gpu = gpu
        self.job = job
        self.facts = facts
        self.num_samples = 0
        """All that ever came."""
        self.names: Mapping[str, int] = {}
        self._time_s = np.empty(0)
        self._values = np.empty((0, 0), np.float32)
        self._newest: list[float] = []

    def add(
        self, names: Mapping[str, int], time_s: NDArray[np.float64], values: NDArray[np.floating]
    ) -> None:
        """Take up samples, the newest last.

        Args:
            names: the number of each column. Where they are others than before, the log's writer
                began anew, and what was before is forgotten.
            time_s: (samples,) since 1970, NaN where rows carry none.
            values: (samples, columns), NaN where there is no reading.

        """
        if names is not self.names and names != self.names:
            self.num_samples = 0
            self._time_s, self._values = np.empty(0), np.empty((0, len(names)), np.float32)
        self.names = names
        self._time_s = np.concatenate((self._time_s, time_s))[-CAPACITY:]
        self._values = np.concatenate((self._values, values), dtype=np.float32)[-CAPACITY:]
        self.num_samples += len(time_s)
        self._newest = values[-1].tolist()

    def last(self, name: str) -> float | None:
        """Give the newest reading of a column; None if there is none."""
        column = self.names.get(name)
        if column is None or not self._newest:
            return None
        value = self._newest[column]
        return None if value != value else value  # noqa: PLR0124 - a NaN

    def column(self, name: str, num: int = CAPACITY) -> NDArray[np.float32]:
        """Give the newest readings of a column, at most `num`, in their order.

        Returns: (samples,), NaN where there is no reading; not to be written to.

        """
        if name not in self.names:
            return np.full(len(self.time_s(num)), np.nan, np.float32)
        values: NDArray[np.float32] = self._values[-num:, self.names[name]]
        return values

    def time_s(self, num: int = CAPACITY) -> NDArray[np.float64]:
        """Give the times of the newest samples, at most `num`, in their order."""
        return self._time_s[-num:]

    def number(self, fact: str) -> float | None:
        """Give a fact of this GPU that is a number, such as `memory_mib`."""
        return parse_number(self.facts.get(fact if self.gpu is None else f"{fact} {self.gpu}"))


class LiveLog:
    """A node's log as far as it is known."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.facts: dict[str, str] = {}
        self.tracks: tuple[Track, ...] = ()
        """In the order of their indices."""
        self.events: deque[LogEvent] = deque(maxlen=_NUM_EVENTS)
        self.num_unreadable = 0
        self.problem: str | None = None
        """Why it cannot be read; None: it can."""
        self.alive_s = -math.inf
        """When it was seen to be written last, monotonic: clocks of nodes may differ."""
        self._log = GrowingLog(path, TAIL_BYTES, _HEAD_BYTES)
        self.job, self.host = self._log.parser.place
        self._written_s: float | None = None
        self._by_gpu: dict[int, Track] = {}

    @property
    def is_there(self) -> bool:
        """Whether the file was there at the last poll."""
        return self._log.file.is_there

    def poll(self) -> list[Stretch]:
        """Check whether there is more; give its rows."""
        try:
            stretches = self._log.poll()
        except OSError as error:
            self.problem = error.strerror or str(error)
            return []
        self._see_alive()
        self.problem = self._log.no_text
        parser = self._log.parser
        self.facts |= parser.facts
        self.job, self.host = parser.place
        self.events += parser.events
        self.num_unreadable += parser.num_damaged_events
        parser.events.clear()
        parser.num_damaged_events = 0
        return stretches

    def _see_alive(self) -> None:
        written_s = self._log.file.written_s
        if written_s is None or written_s == self._written_s:
            return
        is_first = self._written_s is None
        age_s = max(0.0, time.time() - written_s) if is_first else 0.0
        self._written_s, self.alive_s = written_s, time.monotonic() - age_s

    def take(self, stretch: Stretch, rows: Rows) -> None:
        """Take up the rows of a stretch, the newest last."""
        if not rows.gpu.size:
            return
        names = {name: number for number, name in enumerate(rows.values)}
        time_s = _time_s(stretch, rows)
        values = np.column_stack([rows.gpu, *rows.values.values()])[:, 1:].astype(np.float32)
        for gpu in dict.fromkeys(rows.gpu.tolist()):
            chosen = rows.gpu == gpu
            self._track(gpu).add(names, time_s[chosen], values[chosen])
        if rows.gpu.size != len(self._by_gpu):
            self._forget(time_s[-1] - longest_s(self.facts))

    def _forget(self, before_s: float) -> None:
        """Leave out GPUs without a row since then."""
        gone = [gpu for gpu, track in self._by_gpu.items() if track.time_s(1)[0] < before_s]
        if gone:
            self._by_gpu = {gpu: t for gpu, t in self._by_gpu.items() if gpu not in gone}
            self.tracks = tuple(self._by_gpu[number] for number in sorted(self._by_gpu))

    def _track(self, gpu: int) -> Track:
        track = self._by_gpu.get(gpu)
        if track is None or track.host != self.host:
            index = gpu if gpu >= 0 else None
            track = self._by_gpu[gpu] = Track(self.host, index, self.job, self.facts)
            # the thread that draws meanwhile keeps the tuple it has
            self.tracks = tuple(self._by_gpu[number] for number in sorted(self._by_gpu))
        return track


def poll(logs: Iterable[LiveLog]) -> None:
    """Poll logs, and decode what is new of all of them together."""
    found = [(log, stretch) for log in logs for stretch in log.poll()]
    decoded = decode([stretch for _, stretch in found])
    for (log, stretch), (rows, num_unreadable) in zip(found, decoded, strict=True):
        log.num_unreadable += num_unreadable
        log.take(stretch, rows)


def _time_s(stretch: Stretch, rows: Rows) -> NDArray[np.float64]:
    """Give times since 1970, NaN where rows carry none; without a date since midnight."""
    offset_s = stretch.offset.total_seconds() if stretch.offset else 0.0
    clock_s = np.where(rows.clock_s == NO_TIME, np.nan, rows.clock_s - offset_s)
    return clock_s + np.where(rows.days == NO_TIME, 0, rows.days * float(_DAY_S))
