"""The newest sample of each GPU in a log, with the log's facts and events.

The whole log is read once, and later only what is new of it: of its rows, the last few are
read; its `##` lines all are, since what happened to a GPU may stand anywhere.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter, deque
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, NamedTuple

from monitor.logs import constants, dmon, files, gutil
from monitor.logs.columns import NO_READING
from monitor.logs.follow import GrowingLog

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from monitor.logs.dmon import Header
    from monitor.logs.log_events import LogEvent
    from monitor.logs.parser import Stretch

_KEPT_BYTES = 2**17  # some 600 rows: several samples of 16 GPUs
_TIMES_SEEN = 3  # a damaged row or two of a GPU, and the one before counts


@dataclass(frozen=True, slots=True)
class GpuNow:
    """The newest row of a GPU: readings by the log's own column names and units, None: none."""

    index: int | None
    """None: the row of a node without a GPU."""
    time_s: float
    """Since 1970."""
    values: Mapping[str, float | None]


@dataclass(frozen=True)
class NodeNow:
    """The newest state of a log's node. `facts` are its `##` lines by key."""

    job: str | None
    host: str
    gpus: tuple[GpuNow, ...]
    facts: Mapping[str, str]
    events: tuple[LogEvent, ...]
    is_ours: bool
    """Whether our recorder wrote it, so that we know the units of all its columns."""

    @property
    def newest(self) -> GpuNow:
        """The row that was written last."""
        return max(self.gpus, key=lambda gpu: gpu.time_s)


def longest_s(facts: Mapping[str, str]) -> float:
    """Return after how long without a row a GPU is none of the job's any more, by a log's facts.

    Each GPU of the job has a row in every sample: what has none for longer, a start before had.
    """
    interval_s = gutil.parse_number(facts.get("interval_s"))
    return math.inf if interval_s is None else constants.longest_s(interval_s)


class Rows(NamedTuple):
    """Rows under one header, with the log's offset from UTC there (None: it has none)."""

    header: Header
    zone: timezone | None
    text: bytes


def rows_of(stretch: Stretch) -> Iterator[Rows]:
    """Give the rows of a stretch; none where no header says what they hold."""
    if stretch.header is not None:
        zone = None if stretch.offset is None else timezone(stretch.offset)
        for text in stretch.texts:
            yield Rows(stretch.header, zone, text)


def read_row(line: bytes, rows: Rows, written_s: float | None) -> GpuNow | None:
    """Read one of the rows; None if it cannot be read.

    Args:
        line: the row.
        rows: those that it is one of.
        written_s: the time of a row without date or time: when the file was written. None: such a
            row is skipped.

    """
    row = dmon.parse_row(line.decode("utf-8", "replace"), rows.header)
    time_s = None if row is None else _time_s(row, rows.zone, written_s)
    if row is None or time_s is None:
        return None
    index = None if row["gpu"] == NO_READING else int(row["gpu"])
    values = {
        name: dmon.parse_value(cell)
        for name, cell in row.items()
        if name not in ("Date", "Time", "gpu")
    }
    return GpuNow(index, time_s, values)


class Newest:
    """A log that may grow between two polls, be replaced, or be cut."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._log = GrowingLog(path, tail_bytes=None)
        self._num_begun = 0
        self._last: deque[Rows] = deque()
        self._num_bytes = 0
        """Of `_last`."""

    def poll(self) -> NodeNow | None:
        """Read what is new; None as long as there is no row.

        Raises:
            OSError: it cannot be read.

        """
        self._read()
        gpus: dict[int | None, GpuNow] = {}
        seen: Counter[int | None] = Counter()
        for now in self._backwards():
            gpus.setdefault(now.index, now)
            seen[now.index] += 1
            if seen[now.index] == _TIMES_SEEN:
                break
        return self._node(self._present(gpus)) if gpus else None

    def _present(self, gpus: Mapping[int | None, GpuNow]) -> dict[int | None, GpuNow]:
        """Leave out what a start before had."""
        newest_s = max(gpu.time_s for gpu in gpus.values())
        limit_s = longest_s(self._log.parser.facts)
        return {index: gpu for index, gpu in gpus.items() if newest_s - gpu.time_s <= limit_s}

    def _node(self, gpus: Mapping[int | None, GpuNow]) -> NodeNow:
        parser = self._log.parser
        return NodeNow(
            job=parser.place.job,
            host=parser.place.host,
            gpus=tuple(gpus.values()),
            facts=parser.facts,
            events=tuple(event for event in parser.events if event.place == parser.place),
            is_ours="monitor" in parser.facts,
        )

    def _read(self) -> None:
        """Take up what is new, in whole lines; keep the last of its rows."""
        files.refuse_device(os.stat(self.path).st_mode)
        while True:
            stretches = self._log.poll()
            if self._num_begun != self._log.file.num_begun:
                self._num_begun = self._log.file.num_begun
                self._num_bytes = 0
                self._last.clear()
            for stretch in stretches:
                self._keep(stretch)
            if self._log.file.is_at_end:
                return

    def _keep(self, stretch: Stretch) -> None:
        for rows in rows_of(stretch):
            self._last.append(rows._replace(text=rows.text[-_KEPT_BYTES:]))
            self._num_bytes += len(self._last[-1].text)
            while self._num_bytes > _KEPT_BYTES:
                self._num_bytes -= len(self._last.popleft().text)

    def _backwards(self) -> Iterator[GpuNow]:
        """Give the rows that can be read, the newest first."""
        written_s = self._log.file.written_s or 0.0
        for rows in reversed(self._last):
            for line in reversed(rows.text.split(b"\n")):
                now = read_row(line, rows, written_s)
                if now is not None:
                    yield now


def _time_s(row: Mapping[str, str], zone: timezone | None, written_s: float | None) -> float | None:
    """Place a row in time: without date and time, it was written when the file was at the latest.

    Where the log has no offset from UTC, as dmon's own do not, it is this machine's zone.
    """
    day = dmon.parse_date(row.get("Date", ""))
    if day is None or "Time" not in row:
        return written_s
    clock = [int(part) for part in row["Time"].split(":")]
    if zone is None:
        return time.mktime((day.year, day.month, day.day, *clock, 0, 0, -1))  # type: ignore[arg-type]
    return datetime(day.year, day.month, day.day, *clock, tzinfo=zone).timestamp()  # type: ignore[misc,arg-type]
