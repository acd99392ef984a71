"""The newest sample of each GPU in a log, and what the log tells of them.

The whole log is looked at once, and later only what is new of it: of its rows, the last few are
read; its `##` lines all are, since what happened to a GPU may stand anywhere.
"""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, NamedTuple

from monitor.logs import dmon, files, gutil, marks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from monitor.logs.dmon import Header
    from monitor.logs.marks import Mark

_BLOCK_BYTES = 2**22
_KEPT_BYTES = 2**15  # of the rows under one header
_KEPT_STRETCHES = 8  # a header comes every 44 rows: 350 rows, several samples of 16 GPUs
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
    """What a log tells of its node last. `facts` are its `##` lines by key."""

    job: str | None
    host: str
    gpus: tuple[GpuNow, ...]
    facts: Mapping[str, str]
    marks: tuple[Mark, ...]
    is_ours: bool
    """Whether our recorder wrote it, so that we know the units of all its columns."""

    @property
    def newest(self) -> GpuNow:
        """The row that was written last."""
        return max(self.gpus, key=lambda gpu: gpu.time_s)


class _Stretch(NamedTuple):
    """Rows under one header, with the log's offset from UTC there (None: it tells none)."""

    header: Header
    zone: timezone | None
    rows: bytes


@dataclass
class _Known:
    """What was read of a log so far."""

    offset: int = 0
    facts: dict[str, str] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    heads: dmon.Heads = field(default_factory=dmon.Heads)
    last: deque[_Stretch] = field(default_factory=lambda: deque(maxlen=_KEPT_STRETCHES))

    def take(self, data: bytes) -> None:
        """Take up whole lines: learn from those that begin with `#`, keep the last of the rest."""
        is_first = not self.offset
        self.offset += len(data)
        data = data.removeprefix(files.BYTE_ORDER) if is_first else data
        end_of_last = 0
        for begin, end in _comments(data):
            self._keep(data, end_of_last, begin)
            self._learn(data[begin:end].decode("utf-8", "replace").rstrip("\r"))
            end_of_last = end + 1
        self._keep(data, end_of_last, len(data))

    def _keep(self, data: bytes, begin: int, end: int) -> None:
        if self.heads.header is not None and begin < end:
            rows = data[max(begin, end - _KEPT_BYTES) : end]
            zone = _zone(self.facts.get("utc_offset"))
            goes_on = self.last and self.last[-1][:2] == (self.heads.header, zone)
            if begin == 0 and goes_on:  # since the last look
                rows = (self.last.pop().rows + rows)[-_KEPT_BYTES:]
            self.last.append(_Stretch(self.heads.header, zone, rows))

    def _learn(self, line: str) -> None:
        if not line.startswith("##"):
            self.heads.see(line)
            return
        key, value = gutil.parse_comment(line) or ("", "")
        if key == marks.KEY:
            mark = marks.parse(value)
            self.marks += [mark] if mark is not None else []
        elif key:
            self.facts[key] = value


class Newest:
    """A log that may grow between two looks, be replaced, or be cut."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file: tuple[int, int] | None = None
        self._known = _Known()

    def look(self) -> NodeNow | None:
        """Read what is new; None as long as there is no row.

        Raises:
            OSError: it cannot be read.

        """
        written_s = self._read()
        gpus: dict[int | None, GpuNow] = {}
        seen: Counter[int | None] = Counter()
        for now in _backwards(self._known.last, written_s):
            gpus.setdefault(now.index, now)
            seen[now.index] += 1
            if seen[now.index] == _TIMES_SEEN:
                break
        return self._node(gpus) if gpus else None

    def _node(self, gpus: Mapping[int | None, GpuNow]) -> NodeNow:
        facts, (job, host) = self._known.facts, files.named(self.path)
        return NodeNow(
            job=facts.get("job") or job,
            host=facts.get("host") or host,
            gpus=tuple(gpus.values()),
            facts=facts,
            marks=tuple(self._known.marks),
            is_ours="monitor" in facts,
        )

    def _read(self) -> float:
        """Take up what is new, in whole lines; when the file was last written."""
        with open(self.path, "rb") as file:  # noqa: PTH123 - hundreds of them
            status = os.fstat(file.fileno())
            files.refuse_device(status.st_mode)
            key = (status.st_dev, status.st_ino)
            if key != self._file or status.st_size < self._known.offset:
                self._file, self._known = key, _Known()  # another log
            file.seek(self._known.offset)
            rest = b""
            while data := file.read(_BLOCK_BYTES):
                whole, newline, tail = (rest + data).rpartition(b"\n")
                self._known.take(whole + newline)
                rest = tail
        return status.st_mtime


def _comments(data: bytes) -> Iterator[tuple[int, int]]:
    """Find the lines that begin with `#`: where each begins, and its newline."""
    text = b"\n" + data
    at = text.find(b"\n#")
    while at >= 0:
        end = text.index(b"\n", at + 1)
        yield at, end - 1
        at = text.find(b"\n#", end)


def _backwards(stretches: deque[_Stretch], written_s: float) -> Iterator[GpuNow]:
    """Give the rows that can be read, the newest first."""
    for stretch in reversed(stretches):
        lines = stretch.rows.split(b"\n")
        header = stretch.header
        if header.narrow is not None:  # else there is nothing to decide
            header = dmon.settled(header, [line.decode("utf-8", "replace") for line in lines])
        for line in reversed(lines):
            now = _now(line, stretch._replace(header=header), written_s)
            if now is not None:
                yield now


def _zone(offset: str | None) -> timezone | None:
    distance = gutil.parse_offset(offset or "")
    return None if distance is None else timezone(distance)


def _now(line: bytes, stretch: _Stretch, written_s: float) -> GpuNow | None:
    row = dmon.parse_row(line.decode("utf-8", "replace"), stretch.header)
    if row is None:
        return None
    index = None if row["gpu"] == dmon.NO_READING else int(row["gpu"])
    values = {
        name: dmon.parse_value(cell)
        for name, cell in row.items()
        if name not in ("Date", "Time", "gpu")
    }
    return GpuNow(index, _time_s(row, stretch.zone, written_s), values)


def _time_s(row: Mapping[str, str], zone: timezone | None, written_s: float) -> float:
    """Place a row in time: without date and time, it was written when the file was at the latest.

    Where the log tells no offset from UTC, as dmon's own do not, it is this machine's zone.
    """
    day = dmon.parse_date(row.get("Date", ""))
    if day is None or "Time" not in row:
        return written_s
    clock = [int(part) for part in row["Time"].split(":")]
    if zone is None:
        return time.mktime((day.year, day.month, day.day, *clock, 0, 0, -1))  # type: ignore[arg-type]
    return datetime(day.year, day.month, day.day, *clock, tzinfo=zone).timestamp()  # type: ignore[misc,arg-type]
