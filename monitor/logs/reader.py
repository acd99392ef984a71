"""A log file as columns, whatever of it can be read, a block of the file at a time."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from monitor.errors import UserError
from monitor.logs import cells, dmon, files, gutil, lines, marks
from monitor.logs.cells import NO_TIME

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from monitor.logs.marks import Mark

_BLOCK_BYTES = 2**21
"""It is looked at once for each column: a larger one would not stay in the processor's cache."""
_KEPT_BYTES = 2**25 - 2**16
"""As much memory as glibc can be made to keep; pages that are new cost more than reading does."""

_HELD_BYTES = 2**16
"""A stretch of rows that may be narrow waits for its end, if that comes within this."""

NARROW = "some may be of an early 525 or 530 driver, too few to tell how they lie"
INSTANCE = "some speak of a MIG instance, not of the whole GPU"
FOREIGN = "no header of nvidia-smi dmon stands above them"
"""Hints to rows that cannot be read."""

_MARK = f"## {marks.KEY}"
_OF_ROWS = re.compile(r"interval_s|attempt|(gpu|memory_mib) \d{1,4}", re.ASCII)
"""Facts that may change within a log, and then speak of the rows below them."""
_HASH = ord("#")
_NEWLINE = ord("\n")
_RETURN = ord("\r")
_DAY_S = 86_400


@dataclass(frozen=True)
class Place:
    """Whose rows these are."""

    job: str | None
    host: str


@dataclass(frozen=True)
class Log:
    """What one file holds, in the order of its rows.

    `time_s` counts from 1970, in UTC where the log tells its offset, else in local time; NO_TIME
    where rows carry no time. Where they carry no date (`dated` is False) it counts from the
    midnight before the first row. `whole.read` lets it never go back. `gpu` is -1 where a
    node has none. `values` has the log's own columns by name, in its units; a NaN is a reading that
    does not exist.
    """

    path: str
    places: tuple[Place, ...]
    place: NDArray[np.int16]
    """Of each row, in `places`."""
    time_s: NDArray[np.int64]
    gpu: NDArray[np.int32]
    values: dict[str, NDArray[np.floating]]
    dated: bool
    facts: dict[str, str]
    """As the log tells them last."""
    changes: tuple[tuple[str, str], ...]
    """Facts that speak of the rows below them, in their order."""
    num_changes: NDArray[np.int32]
    """Of each row, how many of them stand above it."""
    marks: tuple[Mark, ...]
    """What the log tells of moments, in its order."""
    num_unreadable: int
    """Rows that cannot be read, and marks."""
    torn: bool
    """The last line has no end: it is still growing, or its writer was killed."""
    hints: tuple[str, ...] = ()
    """In words, why some rows cannot be read."""
    shift_s: NDArray[np.int64] | None = None
    """How much later a row's `time_s` is than what is written; None: nowhere."""

    @property
    def written_s(self) -> NDArray[np.int64]:
        """The times as they are written, which are those to show."""
        return self.time_s if self.shift_s is None else self.time_s - self.shift_s

    def told(self, fact: str) -> list[tuple[int, str]]:
        """Give a fact's values, each with how many changes stand above the rows it speaks of."""
        return [(n, value) for n, (key, value) in enumerate(self.changes, 1) if key == fact]

    def rows_of(self, place: Place) -> NDArray[np.bool_]:
        """Tell which rows are a place's."""
        if self.places == (place,):
            return np.ones(self.num_rows, np.bool_)
        code = self.places.index(place) if place in self.places else -1
        rows: NDArray[np.bool_] = self.place == code
        return rows

    def shifted(self, rows: NDArray[np.bool_], by_s: NDArray[np.int64]) -> Log:
        """Give this log with some rows later, as told of each of them."""
        shift_s = np.zeros(self.num_rows, np.int64) if self.shift_s is None else self.shift_s.copy()
        shift_s[rows] = by_s
        return replace(self, time_s=self.written_s + shift_s, shift_s=shift_s)

    @property
    def num_rows(self) -> int:
        """How many rows could be read."""
        return len(self.gpu)

    @property
    def is_foreign(self) -> bool:
        """Whether it is no log of dmon or ours at all, as far as one can tell."""
        return FOREIGN in self.hints


def read(path: str, wanted: frozenset[str] | None = None) -> Log:
    """Read a log of one file, ours or dmon's; of its columns those `wanted`, if not all.

    Raises:
        UserError: the file cannot be read.

    """
    reader = _Reader(path, wanted)
    try:
        rest = reader.read()
    except OSError as error:
        raise UserError(
            f"log: must be a file that can be read; found {path}: {error.strerror}:"
            " name .gutil files, or a directory that holds some"
        ) from error
    return reader.log(torn=bool(rest.strip()))


def refuse_foreign(path: str) -> NoReturn:
    """Tell the user that this, and all else that was named, is no log.

    Raises:
        UserError: always.

    """
    raise UserError(
        f"log: must be one of nvidia-smi dmon, with its header, or of our recorder; found {path},"
        " of which no line can be read: those of pmon, --query-gpu and `noheader` are none, and"
        " nothing may stand before a line"
    )


@dataclass
class _Part:
    """Rows under one header, at one place."""

    place: Place
    offset: timedelta
    num_changes: int
    rows: cells.Rows

    def column(self, name: str) -> NDArray[np.floating]:
        """Give a column; without it, no readings."""
        found = self.rows.values.get(name)
        return np.full(len(self.rows.gpu), np.nan, np.float32) if found is None else found


@dataclass
class _Reader:
    path: str
    wanted: frozenset[str] | None
    facts: dict[str, str] = field(default_factory=dict)
    changes: list[tuple[str, str]] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    num_unreadable: int = 0
    parts: list[_Part] = field(default_factory=list)
    hints: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._heads = dmon.Heads()
        self._has_head = False
        self._place = Place(*files.named(self.path))
        self._offset = timedelta()

    def read(self) -> bytes:
        """Read the file; what is left without an end."""
        np.empty(_KEPT_BYTES, np.uint8)  # freed at once: glibc keeps as much from now on
        block, filled, is_begun = bytearray(_BLOCK_BYTES), 0, False
        with Path(self.path).open("rb", buffering=0) as file:
            files.refuse_device(os.fstat(file.fileno()).st_mode)
            while num := file.readinto(memoryview(block)[filled:]):
                filled += num
                if not is_begun and filled >= len(files.BYTE_ORDER):
                    filled, is_begun = _begun(block, filled), True
                end = self._block(block, block.rfind(b"\n", 0, filled) + 1, is_last=False)
                block[: filled - end] = block[end:filled]
                filled -= end
                if filled == len(block):
                    block += bytes(len(block))
        end = self._block(block, block.rfind(b"\n", 0, filled) + 1, is_last=True)
        return bytes(block[end:filled])

    def log(self, *, torn: bool) -> Log:
        """Join what was read."""
        places = tuple(dict.fromkeys(part.place for part in self.parts))
        sizes = [len(part.rows.gpu) for part in self.parts]
        codes = [places.index(part.place) for part in self.parts]
        names = dict.fromkeys(name for part in self.parts for name in part.rows.values)
        time_s, dated = self._times()
        if self.num_unreadable and not self._has_head and not self.facts:
            self.hints[FOREIGN] = None
        return Log(
            path=self.path,
            places=places,
            place=np.repeat(np.array(codes, np.int16), sizes),
            time_s=time_s,
            gpu=np.concatenate([np.empty(0, np.int32), *(p.rows.gpu for p in self.parts)]),
            values={name: self._column(name) for name in names},
            dated=dated,
            facts=self.facts,
            changes=tuple(self.changes),
            num_changes=np.repeat(np.array([p.num_changes for p in self.parts], np.int32), sizes),
            marks=tuple(self.marks),
            num_unreadable=self.num_unreadable,
            torn=torn,
            hints=tuple(self.hints),
        )

    def _column(self, name: str) -> NDArray[np.floating]:
        """Join a column's parts."""
        return np.concatenate([part.column(name) for part in self.parts])

    def _times(self) -> tuple[NDArray[np.int64], bool]:
        """Join times; without dates, a step back by more than half a day is midnight."""
        days = [part.rows.days for part in self.parts]
        clocks = [
            np.where(p.rows.clock_s == NO_TIME, NO_TIME, p.rows.clock_s - _seconds(p.offset))
            for p in self.parts
        ]
        day = np.concatenate([np.empty(0, np.int64), *days])
        clock = np.concatenate([np.empty(0, np.int64), *clocks])
        dated = not (day == NO_TIME).any()
        if not dated:
            passed = np.diff(clock, prepend=clock[:1]) < -_DAY_S // 2
            day = np.cumsum(passed & (clock != NO_TIME))
        return np.where(clock == NO_TIME, NO_TIME, day * _DAY_S + clock), dated

    def _block(self, block: bytearray, size: int, *, is_last: bool) -> int:
        """Read whole lines: those between two changes of header, place or offset at once.

        Rows move to the front of the block, over the headers between them, and so lie together.

        Returns: how much was read; the rest has to come again, with what follows it.
        """
        text = memoryview(block)
        pos = begin = end = 0
        header, *_ = before = self._state()
        while pos < size:
            if block[pos] != _HASH:
                stop = _end_of_rows(block, pos, size)
                narrow = header and header.narrow
                if narrow and stop == size and not is_last and stop - pos < _HELD_BYTES:
                    size = pos  # it may go on in the next block
                elif header and narrow and not _is_usual(header, block, pos, stop):
                    self._rows(text[begin:end], *before)
                    begin = end
                    self._stretch(bytes(text[pos:stop]))
                else:
                    text[end : end + stop - pos] = text[pos:stop]
                    end += stop - pos
                if block.startswith(self._heads.repeated, stop, size):  # every 44 rows
                    stop += len(self._heads.repeated)
            else:
                stop = block.index(b"\n", pos, size) + 1
                self._learn(block[pos : stop - 1].removesuffix(b"\r").decode("utf-8", "replace"))
                if before != self._state():
                    self._rows(text[begin:end], *before)
                    begin = end
                    header, *_ = before = self._state()
            pos = stop
        self._rows(text[begin:end], *before)
        return size

    def _state(self) -> tuple[dmon.Header | None, Place, timedelta, int]:
        """What rows lie under."""
        return self._heads.header, self._place, self._offset, len(self.changes)

    def _stretch(self, rows: bytes) -> None:
        """Read rows from one header to the next that may be narrow."""
        header, place, offset, num_changes = self._state()
        if header is None or header.narrow is None:
            return
        told = rows.decode("utf-8", "replace").split("\n")
        chosen = dmon.settled(header, told)
        self._rows(memoryview(bytearray(rows)), chosen, place, offset, num_changes)
        if chosen is header:
            pairs = ((dmon.parse_row(x, header), dmon.parse_row(x, header.narrow)) for x in told)
            ways = {(bool(usual), bool(early)) for usual, early in pairs}
            if (False, True) in ways and (True, False) not in ways:
                self.hints[NARROW] = None

    def _rows(
        self,
        text: memoryview,
        header: dmon.Header | None,
        place: Place,
        offset: timedelta,
        num_changes: int,
    ) -> None:
        if not text:
            return
        self._has_head |= header is not None
        parts, num_unreadable = lines.read(np.frombuffer(text, np.uint8), header, self.wanted)
        self.parts += [_Part(place, offset, num_changes, rows) for rows in parts]
        self.num_unreadable += num_unreadable
        if num_unreadable and header is not None and header.instance:
            self.hints[INSTANCE] = None

    def _learn(self, line: str) -> None:
        """Look at a line that begins with `#`."""
        if not line.startswith("##"):
            self._heads.see(line)
            return
        if line == _MARK or line.startswith(f"{_MARK}:"):
            self._mark(line)
            return
        known = gutil.parse_comment(line)
        if known is None:
            return
        key, value = known
        if self.facts.get(key) != value and _OF_ROWS.fullmatch(key):
            self.changes.append((key, value))
        self.facts[key] = value
        if key in ("host", "job"):
            self._place = replace(self._place, **{key: value})
        elif key == "utc_offset":
            self._offset = gutil.parse_offset(value) or timedelta()

    def _mark(self, line: str) -> None:
        """Take up what happened; count it where it is torn or damaged."""
        key, _, value = line.partition(": ")
        mark = marks.parse(value) if key == _MARK else None
        if mark is None:
            self.num_unreadable += 1
        else:
            self.marks.append(mark)


def _begun(block: bytearray, size: int) -> int:
    """Take away a byte order mark, which Windows sets before a text; how much is left.

    Raises:
        OSError: this is no text of one byte a character.

    """
    found = files.no_text(block)
    if found is not None:
        raise OSError(errno.EILSEQ, found)
    if not block.startswith(files.BYTE_ORDER):
        return size
    block[: size - len(files.BYTE_ORDER)] = block[len(files.BYTE_ORDER) : size]
    return size - len(files.BYTE_ORDER)


def _is_usual(header: dmon.Header, block: bytearray, pos: int, stop: int) -> bool:
    """Tell whether these rows are all as long as usual ones, and so no early program's.

    Of those a row is as long only without a `-`, and then it lies both ways.
    """
    width = block.index(b"\n", pos, stop) + 1 - pos
    length = width - 1 - (block[pos + width - 2] == _RETURN)
    ends = block[pos + width - 1 : stop : width]
    is_even = not (stop - pos) % width and ends.count(_NEWLINE) == len(ends)
    return is_even and length in header.usual_lengths


def _end_of_rows(block: bytearray, pos: int, size: int) -> int:
    """Find where the next line that begins with `#` does."""
    found = block.find(_HASH, pos, size)  # one byte is found many times as fast as two
    while found > 0 and block[found - 1] != _NEWLINE:
        found = block.find(_HASH, found + 1, size)
    return size if found < 0 else found


def _seconds(offset: timedelta) -> int:
    return offset.days * _DAY_S + offset.seconds
