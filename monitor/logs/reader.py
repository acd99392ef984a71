"""A log whole, as columns: whatever of its files can be read, a block at a time."""

from __future__ import annotations

import errno
import functools
import itertools
import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeVar

import numpy as np

from monitor.errors import UserError
from monitor.logs import clock, facts, files
from monitor.logs.decode import NO_TIME, Rows, decode
from monitor.logs.log import FOREIGN, INSTANCE, Log
from monitor.logs.log_events import Place
from monitor.logs.parser import Parser

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from monitor.logs.parser import Stretch

_BLOCK_BYTES = 2**22
"""Larger ones would not stay in the processor's cache while their cells are cut."""

_FIRST_BYTES = 8  # more than any sign has by which a file is no text

_KEPT_BYTES = 2**25 - 2**16
"""As much memory as glibc can be made to keep; pages that are new cost more than reading does."""

_DAY_S = 86_400
_Scalar = TypeVar("_Scalar", bound=np.generic)


def read(path: str, wanted: frozenset[str] | None = None) -> Log:
    """Read a log of one file, ours or dmon's; of its columns those `wanted`, if not all.

    Raises:
        UserError: the file cannot be read.

    """
    np.empty(_KEPT_BYTES, np.uint8)  # freed at once: glibc keeps as much from now on
    parser = Parser(Place(*files.named(path)), is_patient=True)
    parts, is_torn = _Parts(wanted), False
    try:
        for data, rest in _blocks(path):
            parts.add(parser.take(data))
            is_torn = bool(rest.strip())
    except OSError as error:
        raise files.unreadable(path, error) from error
    parts.add(parser.end())
    return parts.log(path, parser, is_torn=is_torn)


def read_log(paths: Sequence[str], wanted: frozenset[str] | None = None) -> list[Log]:
    """Read the files of one log, the oldest first, with times that never go back within a host.

    Of its columns it has those `wanted`, if not all.

    Raises:
        UserError: a file cannot be read.

    """
    logs = [read(path, wanted) for path in paths]
    places = {place for log in logs for place in log.places}
    return functools.reduce(_set_right, sorted(places, key=repr), logs)


def refuse_foreign(path: str) -> NoReturn:
    """Refuse this, and all else that was named, as no log."""
    raise UserError(
        "a log must be one of nvidia-smi dmon, with its header, or of our recorder",
        f"{path}, of which no line can be read",
        "those of pmon, --query-gpu and `noheader` are none, and nothing may stand before a line",
    )


def _blocks(path: str) -> Iterator[tuple[bytes, bytes]]:
    """Give the whole lines of each block of a file, and what is left without an end."""
    rest = b""
    with Path(path).open("rb") as file:
        files.refuse_device(os.fstat(file.fileno()).st_mode)
        first = _begun(file.read(_FIRST_BYTES))
        for data in itertools.chain([first], iter(lambda: file.read(_BLOCK_BYTES), b"")):
            rest += data
            end = rest.rfind(b"\n") + 1
            whole, rest = rest[:end], rest[end:]
            yield whole, rest


def _begun(data: bytes) -> bytes:
    """Take away a byte order mark, which Windows sets before a text.

    Raises:
        OSError: this is no text of one byte a character.

    """
    found = files.no_text(data)
    if found is not None:
        raise OSError(errno.EILSEQ, found)
    return data.removeprefix(files.BYTE_ORDER)


class _Part(NamedTuple):
    """The rows of a stretch."""

    stretch: Stretch
    rows: Rows


class _Parts:
    """What was read of a file so far."""

    def __init__(self, wanted: frozenset[str] | None) -> None:
        self._wanted = wanted
        self._parts: list[_Part] = []
        self._num_unreadable = 0
        self._has_instances = self._has_head = False

    def add(self, stretches: Sequence[Stretch]) -> None:
        """Decode stretches."""
        for stretch, (rows, num_unreadable) in zip(
            stretches, decode(stretches, self._wanted), strict=True
        ):
            self._num_unreadable += num_unreadable
            header = stretch.header
            self._has_head |= header is not None
            self._has_instances |= bool(num_unreadable and header and header.instance)
            if rows.gpu.size:
                self._parts.append(_Part(stretch, rows))

    def log(self, path: str, parser: Parser, *, is_torn: bool) -> Log:
        """Join all."""
        parts = self._parts
        places = tuple(dict.fromkeys(part.stretch.place for part in parts))
        sizes = [part.rows.gpu.size for part in parts]
        codes = np.array([places.index(part.stretch.place) for part in parts], np.int16)
        changes = np.array([part.stretch.num_changes for part in parts], np.int32)
        time_s, is_dated = self._times()
        return Log(
            path=path,
            places=places,
            place=np.repeat(codes, sizes),
            time_s=time_s,
            gpu=_joined([part.rows.gpu for part in parts], np.int32),
            values=self._values(),
            dated=is_dated,
            facts=parser.facts,
            changes=tuple(parser.changes),
            num_changes=np.repeat(changes, sizes),
            events=tuple(parser.events),
            num_unreadable=self._num_unreadable + parser.num_damaged_events,
            torn=is_torn,
            hints=self._hints(parser),
            num_lost=parser.num_lost,
        )

    def _hints(self, parser: Parser) -> tuple[str, ...]:
        num_unreadable = self._num_unreadable + parser.num_damaged_events
        is_foreign = bool(num_unreadable and not parser.facts and not self._has_head)
        hints = {INSTANCE: self._has_instances, FOREIGN: is_foreign}
        return (*sorted(parser.hints), *(hint for hint, is_so in hints.items() if is_so))

    def _values(self) -> dict[str, NDArray[np.floating]]:
        names = dict.fromkeys(name for part in self._parts for name in part.rows.values)
        return {
            name: np.concatenate([_column(part, name) for part in self._parts]) for name in names
        }

    def _times(self) -> tuple[NDArray[np.int64], bool]:
        """Join times; without dates, a step back by more than half a day is midnight."""
        day = _joined([part.rows.days for part in self._parts], np.int64)
        offsets = [part.stretch.offset for part in self._parts if part.stretch.offset is not None]
        first = offsets[0] if offsets else timedelta()  # of what stands above it, too
        clock_s = _joined([_utc_s(part, first) for part in self._parts], np.int64)
        is_dated = not (day == NO_TIME).any()
        if not is_dated:
            passed = np.diff(clock_s, prepend=clock_s[:1]) < -_DAY_S // 2
            day = np.cumsum(passed & (clock_s != NO_TIME))
        return np.where(clock_s == NO_TIME, NO_TIME, day * _DAY_S + clock_s), is_dated


def _utc_s(part: _Part, first: timedelta) -> NDArray[np.int64]:
    """Give times of day as those of UTC; where no line above them states the offset, by another."""
    offset = first if part.stretch.offset is None else part.stretch.offset
    clock_s = part.rows.clock_s
    shift_s = offset.days * _DAY_S + offset.seconds
    return np.where(clock_s == NO_TIME, NO_TIME, clock_s - shift_s)


def _column(part: _Part, name: str) -> NDArray[np.floating]:
    """Give a column; without it, no readings."""
    found = part.rows.values.get(name)
    return np.full(part.rows.gpu.size, np.nan, np.float32) if found is None else found


def _joined(parts: Sequence[NDArray[_Scalar]], kind: type[_Scalar]) -> NDArray[_Scalar]:
    return np.concatenate(parts) if parts else np.empty(0, kind)


def _set_right(logs: list[Log], place: Place) -> list[Log]:
    rows = [log.rows_of(place) for log in logs]
    time_s = np.concatenate([log.time_s[which] for log, which in zip(logs, rows, strict=True)])
    if not clock.is_odd(time_s):
        return logs
    mono_s = np.concatenate(
        [_monotonic_s(log)[which] for log, which in zip(logs, rows, strict=True)]
    )
    pairs = zip(facts.intervals_s(logs), rows, strict=True)
    nominal_s = np.concatenate([interval_s[which] for interval_s, which in pairs])
    shift_s = clock.shifts_s(time_s, mono_s, nominal_s)
    if shift_s is None:
        return logs
    parts = np.split(shift_s, np.cumsum([which.sum() for which in rows])[:-1])
    return [log.shifted(which, by_s) for log, which, by_s in zip(logs, rows, parts, strict=True)]


def _monotonic_s(log: Log) -> NDArray[np.floating]:
    """Give the monotonic stamps; where they were not asked for, the log is read once more."""
    if "monitor" in log.facts and "mono" not in log.values:
        stamps = read(log.path, frozenset({"mono"}))
        if stamps.num_rows >= log.num_rows:  # it may have grown
            log = replace(log, values=stamps.values)
    return log.values.get("mono", np.full(log.num_rows, np.nan))[: log.num_rows]
