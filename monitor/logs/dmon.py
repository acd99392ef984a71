"""Reading what `nvidia-smi dmon` writes, any series, any choice of columns, and our logs as well.

A column is known by the header above it and by nothing else. A row counts only if it lies in its
header's cells byte for byte, so that a torn or damaged one is never taken for another number:
`parse_row` is the rule, and what reads faster must agree with it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from monitor.logs.columns import COLUMNS, NO_READING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BLANKS = " \t\r"
"""A line of nothing but these is blank."""

UNITS = {column.name: column.unit for column in COLUMNS if not column.dmon_unit}
"""The unit of a column; a header with another one is damaged."""

INSTANCE = frozenset({"mig", "gi", "ci", "mig_id", "gi_id", "ci_id"})
"""Columns that say which part of a GPU (MIG) a row is about; `-` there is the whole GPU."""

_INDICES = ("Idx", "Id", "ID", "#")

_STAMPS = {"Date": "YYYYMMDD", "Time": "HH:MM:SS"}
_STAMP_WIDTH = 8
_WIDENED = 6
"""The 525 series writes cells of this width one wider than its own header."""
_EARLY = 6
"""How wide cells of the early 525 and 530 programs are: a blank follows a number, none a `-`."""
_EARLY_GPM = 10
"""How wide their cells of GPM are, which nothing follows."""
_EARLY_HEADS = (6, 7)
"""How wide their headers have the former."""

Span = tuple[int, int]


@dataclass(frozen=True)
class Cells:
    """Where the cells of a row of `length` characters lie."""

    length: int
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Header:
    """What a line of names says of the rows under it: names in order, and where cells end."""

    names: tuple[str, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    length: int
    csv: bool = False
    is_narrow: bool = False
    """Whether each `-` makes its row one character shorter."""

    @cached_property
    def num_stamps(self) -> int:
        """How many of Date and Time stand before the GPU's index."""
        return self.names.index("gpu")

    @cached_property
    def layouts(self) -> tuple[Cells, ...]:
        """How rows may lie under this header: under its names, or as the 525 series has them.

        None where something has taken its blanks away, so that no cell is left for a stamp.
        """
        *stamps, first = self.front
        edges = [edge for span in self.front for edge in span]
        is_squeezed = edges != sorted(edges) or first[0] == first[1]
        if self.csv or self.is_narrow or is_squeezed:
            return ()
        tails = list(pairwise(self.ends[self.num_stamps :]))
        own = Cells(self.length, (*stamps, first, *tails))
        spaced = self.length > self.ends[-1]
        if spaced or not tails or tails[0][1] - tails[0][0] != _WIDENED:
            return (own,)
        layouts = [own]
        for widened in ({_WIDENED}, {e - s for s, e in tails}):
            spans, end = [*stamps, first], first[1]
            for start, stop in tails:
                width = stop - start
                spans.append((end, end + width + (width in widened)))
                end = spans[-1][1]
            layouts.append(Cells(end + 1, tuple(spans)))
        return tuple({cells.length: cells for cells in layouts}.values())

    @cached_property
    def front(self) -> tuple[Span, ...]:
        """Where stamps and the GPU's index lie."""
        stamps = tuple((s, s + _STAMP_WIDTH) for s in self.starts[: self.num_stamps])
        return *stamps, (stamps[-1][1] if stamps else 0, self.ends[self.num_stamps])

    @cached_property
    def narrow(self) -> Header | None:
        """The same header as early programs of the 525 and 530 series fill it; None: not theirs.

        They know no `jpg`, `ofa` and `ccpm` yet.
        """
        widths = [end - start for start, end in pairwise(self.ends[self.num_stamps :])]
        cell = widths[0] if widths else 0
        num = sum(width == cell for width in widths)
        gpm = [_EARLY_GPM + (i == 0 and cell > _EARLY) for i in range(len(widths) - num)]
        theirs = cell in _EARLY_HEADS and widths == [cell] * num + gpm
        if self.csv or not theirs or {"jpg", "ofa", "ccpm"} & {*self.names}:
            return None
        return replace(self, is_narrow=True)

    @cached_property
    def narrow_widths(self) -> tuple[int, ...]:
        """How wide the readings of early programs are."""
        widths = (end - start for start, end in pairwise(self.ends[self.num_stamps :]))
        return tuple(_EARLY if width in _EARLY_HEADS else _EARLY_GPM for width in widths)

    @cached_property
    def usual_lengths(self) -> frozenset[int]:
        """Of rows that lie as usual; narrow ones are as long only where they lie both ways."""
        lengths = frozenset(layout.length for layout in self.layouts)
        if self.narrow is None:
            return lengths
        widths = self.narrow.narrow_widths
        num = widths.count(_EARLY)
        bare = self.front[-1][1] + 1 + sum(widths) + num  # without a `-`
        alike = num == len(widths) or self.ends[self.num_stamps + 1] - self.front[-1][1] > _EARLY
        return lengths - {*range(bare - num, bare + (not alike))}

    @cached_property
    def instance(self) -> tuple[str, ...]:
        """Which of the names say what part of a GPU a row is about."""
        return tuple(name for name in self.names if name.lower() in INSTANCE)

    def agrees(self, line: str) -> bool:
        """Whether this is the line of units under these names."""
        units = _tokens(line, csv="," in line)
        if len(units) != len(self.names) or ("," in line) != self.csv:
            return False
        for i, (name, unit) in enumerate(zip(self.names, units, strict=True)):
            wanted = {**UNITS, **_STAMPS, "gpu": "Idx"}.get(name)
            if wanted is not None and unit.group() != wanted:
                return False
            if wanted is None and unit.group() in _INDICES and name not in self.instance:
                return False  # it numbers something, but what?
            left = i < self.num_stamps
            place = unit.start() == self.starts[i] if left else unit.end() == self.ends[i]
            if not (self.csv or place):
                return False
        return True


_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.:/%-]*")


@lru_cache(maxsize=64)
def parse_header(line: str) -> Header | None:
    """Read the line of names; None for any other line, the line of units included."""
    if not line.startswith("#") or line.startswith("##"):
        return None
    text = line.rstrip("\r\n")
    csv = "," in text
    tokens = _tokens(text, csv=csv)
    names = tuple(token.group() for token in tokens)
    if "gpu" not in names or len(set(names)) != len(names):
        return None
    stamps = names[: names.index("gpu")]
    if stamps not in ((), ("Date",), ("Time",), ("Date", "Time")):
        return None
    if not all(_NAME.fullmatch(name) for name in names) or {*_STAMPS} & {*names[len(stamps) :]}:
        return None
    starts, ends = (tuple(getattr(t, side)() for t in tokens) for side in ("start", "end"))
    return Header(names, starts, ends, len(text), csv)


def _tokens(line: str, *, csv: bool) -> list[re.Match[str]]:
    text = line.rstrip("\r\n").replace("#", " ", 1)
    return list(re.finditer(r"[^\s,](?:[^,]*[^\s,])?" if csv else r"\S+", text))


class Heads:
    """Follows the header lines of a log. What is not understood leaves the rows without a header.

    A line of units has to follow its line of names and agree with it, if there is one at all.
    """

    def __init__(self) -> None:
        self.header: Header | None = None
        self._open: str | None = None
        self._known: tuple[str, str] | None = None
        self._written = b""

    @property
    def repeated(self) -> bytes:
        """Two lines that would change nothing: the header once more. Empty: there are none."""
        return b"" if self._known is None or self._open is not None else self._written

    def see(self, line: str) -> None:
        """Read a line that begins with `#`, but not with `##`."""
        if self._known is not None and self._open is None and line == self._known[0]:
            self._open = line
            return
        if self._open is not None and self._known == (self._open, line):
            self._open = None
            return
        header = parse_header(line)
        if header is not None:
            self.header, self._open, self._known = header, line, None
        elif self.header and self._open is not None and self.header.agrees(line):
            self._known, self._open = (self._open, line), None
            self._written = "".join(f"{one}\n" for one in self._known).encode()
        else:
            self.header = self._open = self._known = None


NUMBER = re.compile(r"-|0|[1-9][0-9]*")  # dmon writes whole numbers only, those of GPM as well
MAX_INDEX_DIGITS = 4
_INDEX = re.compile(r"-|0|[1-9][0-9]{0,3}")
CLOCK = re.compile(r"(?:[01][0-9]|2[0-3])(?::[0-5][0-9]){2}")
_DAY = re.compile(r"(?!0001|9999)[0-9]{8}")  # beside those years lie days that Python does not know


def parse_row(line: str, header: Header) -> dict[str, str] | None:
    """Read the cells of a row by column name; None if the row cannot be read."""
    text = line.removesuffix("\n").removesuffix("\r")
    cells = _split(text, header) if header.csv else _cut(text, header)
    if cells is None:
        return None
    row = dict(zip(header.names, cells, strict=True))
    if any(row[name] != NO_READING for name in header.instance):
        return None  # else a part of a GPU would pass for the whole
    return row if _is_sound(row) else None


class Signs(NamedTuple):
    """What rows show of how they lie; those without a `-` may lie both ways."""

    num_usual: int
    """Rows that lie as usual only."""
    num_narrow: int
    """Rows that lie narrow only."""
    num_signs: int
    """Each `-` in these that shows it."""
    num_odd: int
    """Rows that do not lie narrow."""

    @property
    def is_narrow(self) -> bool:
        """Whether rows without a line between them that begins with `#` lie narrow.

        A single narrow row looks like one that lost a digit behind a `-`. So it takes two such
        rows or two such `-`, more of them than rows that lie in no way, and no row that lies as
        usual only.
        """
        return not self.num_usual and self.num_signs > max(1, self.num_odd)


def signs_of_layout(header: Header, lines: Sequence[str]) -> Signs:
    """Count how rows lie under a header that an early program may have written."""
    slim = header.narrow
    if slim is None:
        return Signs(0, 0, 0, 0)
    rows = [line for line in lines if line.strip(BLANKS)]
    read = [(parse_row(row, header), parse_row(row, slim)) for row in rows]
    alone = [early for usual, early in read if early and not usual]
    return Signs(
        num_usual=sum(1 for usual, early in read if usual and not early),
        num_narrow=len(alone),
        num_signs=sum(_num_signs(early, slim) for early in alone),
        num_odd=sum(1 for _, early in read if not early),
    )


def _num_signs(row: Mapping[str, str], slim: Header) -> int:
    """Count what shows that a row lies narrow only: each `-` that makes it shorter."""
    names = slim.names[slim.num_stamps + 1 :]
    plain = (n for n, width in zip(names, slim.narrow_widths, strict=True) if width == _EARLY)
    return max(1, sum(row[name] == NO_READING for name in plain))


def _cut(text: str, header: Header) -> list[str] | None:
    """Cut by position: cells may touch, as those of six digits do up to driver 470.

    A number too wide for its cell moves the rest of its row, which then is what a hole of some
    bytes would have left of two rows: no reader can decide, and it does not count.
    """
    if header.is_narrow:
        return _cut_narrow(text, header)
    for layout in header.layouts:
        if len(text) == layout.length:
            cells = [text[start:end] for start, end in layout.spans]
            if _rest_is_blank(text, layout):
                return [cell.lstrip(" ") for cell in cells]
    return None


def _cut_narrow(text: str, header: Header) -> list[str] | None:
    """Cut from left to right: a `-` has no blank behind it; the last one may have been cut off."""
    place = header.front[-1][1] + 1
    if not _rest_is_blank(text[:place], Cells(place, header.front)):
        return None
    cells = [text[start:end].lstrip(" ") for start, end in header.front]
    for width in header.narrow_widths:
        cell = text[place : place + width]
        place += width
        if len(cell) < width:
            return None
        cells.append(cell.lstrip(" "))
        if width == _EARLY and cells[-1] != NO_READING:
            if text[place : place + 1].strip(" "):
                return None
            place += 1
    return cells if place >= len(text) else None


def _rest_is_blank(text: str, layout: Cells) -> bool:
    edges = [0, *(edge for span in layout.spans for edge in span), layout.length]
    gaps = zip(edges[::2], edges[1::2], strict=True)
    return not any(text[start:end].strip(" ") for start, end in gaps)


def _split(text: str, header: Header) -> list[str] | None:
    """Split a row at its commas; a cell may repeat its column's unit."""
    cells = [cell.strip(" ") for cell in text.split(",")]
    if len(cells) != len(header.names):
        return None
    units = (UNITS.get(name) for name in header.names)
    return [
        cell.removesuffix(f" {unit}") if unit else cell
        for cell, unit in zip(cells, units, strict=True)
    ]


def _is_sound(row: dict[str, str]) -> bool:
    for name, cell in row.items():
        if name == "Date":
            if parse_date(cell) is None:
                return False
        elif not {"Time": CLOCK, "gpu": _INDEX}.get(name, NUMBER).fullmatch(cell):
            return False
    return True


@lru_cache(maxsize=256)
def parse_date(cell: str) -> date | None:
    """Read a day such as 20261121; None if there is no such day."""
    if not _DAY.fullmatch(cell):
        return None
    try:
        return date(int(cell[:4]), int(cell[4:6]), int(cell[6:]))
    except ValueError:
        return None


def parse_value(cell: str) -> float | None:
    """Read a cell's number; None where there was no reading."""
    return None if cell == NO_READING else float(cell)
