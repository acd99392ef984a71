"""Rows of many growing logs, read together: a thousand rows cost little more than ten."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from monitor.logs import cells, dmon

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from monitor.logs.dmon import Header

_DAY_S = 86_400


class Log(Protocol):
    """Whoever rows belong to."""

    num_unreadable: int

    def take(self, readings: Readings) -> None:
        """Take up readings, the newest last."""


class Readings(NamedTuple):
    """Rows as numbers; a NaN is a reading that does not exist."""

    names: dict[str, int]
    """The number of each column; the same object for the same columns."""
    gpu: NDArray[np.int32]
    """(rows,); -1 where the node has none."""
    time_s: NDArray[np.float64]
    """(rows,) since 1970, NaN where rows carry no time."""
    values: NDArray[np.floating]
    """(rows, columns)."""


class _Key(NamedTuple):
    header_id: int
    offset_s: float
    epoch: int
    length: int


class _Group(NamedTuple):
    header: Header
    logs: list[Log]
    """Of each line."""
    lines: list[bytes]


class Batch:
    """Lines that came since the last look."""

    def __init__(self) -> None:
        self._groups: dict[_Key, _Group] = {}

    def add(self, log: Log, header: Header, offset_s: float, epoch: int, line: bytes) -> None:
        """Put a line aside; those of one log in the order of the file.

        Args:
            log: to which its reading goes.
            header: above it. Equal headers are one object (`dmon.parse_header`).
            offset_s: of its time from UTC.
            epoch: counts the changes of header within what is new of a log: later ones are read
                later.
            line: without its end.

        """
        key = _Key(id(header), offset_s, epoch, len(line))
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(header, [], [])
        group.logs.append(log)
        group.lines.append(line)

    def read(self) -> None:
        """Read all lines, and give them to their logs."""
        for key in sorted(self._groups, key=lambda key: key.epoch):
            self._read(self._groups[key], key)
        self._groups.clear()

    def _read(self, group: _Group, key: _Key) -> None:
        header = group.header
        fits = any(layout.length == key.length for layout in header.layouts)
        rows = _quickly(group, key.length) if fits else None
        found = None if rows is None else _readings(header, rows, key.offset_s)
        for log, begin, end in _stretches(group.logs):
            if rows is not None and found is not None and rows.ok[begin:end].all():
                part = slice(begin, end)
                log.take(
                    Readings(found.names, found.gpu[part], found.time_s[part], found.values[part])
                )
                continue
            few = _patiently(log, header, group.lines[begin:end])
            if few is not None:
                log.take(_readings(header, few, key.offset_s))


def _quickly(group: _Group, length: int) -> cells.Rows:
    text = np.frombuffer(b"\n".join([*group.lines, b""]), np.uint8)
    starts = np.arange(len(group.lines), dtype=np.int64) * (length + 1)
    return cells.decode(text, starts, group.header, length, None)


def _patiently(log: Log, header: Header, lines: Sequence[bytes]) -> cells.Rows | None:
    """Read lines one by one, and count those that cannot be read."""
    texts = [line.decode("utf-8", "replace") for line in lines]
    told = [text for text in texts if text.strip(dmon.BLANKS)]
    read = [row for row in (dmon.parse_row(text, header) for text in told) if row is not None]
    log.num_unreadable += len(told) - len(read)
    return cells.from_text(read, header, None) if read else None


def _readings(header: Header, rows: cells.Rows, offset_s: float) -> Readings:
    names = _numbered(header.names[header.num_stamps + 1 :])
    clock_s = rows.clock_s.astype(np.float64)
    time_s = np.where(rows.clock_s == cells.NO_TIME, np.nan, clock_s - offset_s)
    time_s += np.where(rows.days == cells.NO_TIME, 0, rows.days * float(_DAY_S))
    values = np.empty((len(rows.gpu), len(names)), np.float32)
    for name, number in names.items():
        values[:, number] = rows.values[name]
    return Readings(names, rows.gpu, time_s, values)


_NUMBERED: dict[tuple[str, ...], dict[str, int]] = {}


def _numbered(names: tuple[str, ...]) -> dict[str, int]:
    found = _NUMBERED.get(names)
    if found is None:
        found = _NUMBERED[names] = {name: i for i, name in enumerate(names)}
    return found


def _stretches(logs: Sequence[Log]) -> list[tuple[Log, int, int]]:
    """Find the lines of each log: they lie together."""
    found: list[tuple[Log, int, int]] = []
    begin = 0
    for i in range(1, len(logs) + 1):
        if i == len(logs) or logs[i] is not logs[begin]:
            found.append((logs[begin], begin, i))
            begin = i
    return found
