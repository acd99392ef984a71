"""Which characters of some rows have to be read row by row, and which need not be.

Most characters of a log are the same in thousands of rows, or a digit in all of them: a cell of the
former is read once, one of the latter need not be checked.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from monitor.logs.digits import PART, Part

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from monitor.logs.dmon import Header, Span

_NARROW = 7
"""Numbers of up to this many characters are whole in a Float32."""

_BLANK = ord(" ")
_STEADY = re.compile(rb"[ nzs]*")
_SURE = re.compile(rb" *(?:[Nn][NnZz]*|[Zz])")
"""By kinds: characters that are the same in all rows; numbers of as many digits in all."""


@cache
def _kinds() -> NDArray[np.uint8]:
    """Tell of what kind a character is, by its least and greatest byte in all rows.

    A blank, a digit from 1 on (N), a digit (Z), or something else (?); those that are the same in
    all rows are n, z and s.
    """
    kinds = np.full((256, 256), ord("?"), np.uint8)
    zero, end = ord("0"), ord("9") + 1
    kinds[zero:end, zero:end] = ord("Z")
    kinds[zero + 1 : end, zero + 1 : end] = ord("N")
    steady = np.full(256, ord("s"), np.uint8)
    steady[zero:end] = np.frombuffer(b"znnnnnnnnn", np.uint8)
    steady[_BLANK] = _BLANK
    np.fill_diagonal(kinds, steady)
    return kinds


def kinds_of(least: NDArray[np.uint8], most: NDArray[np.uint8]) -> bytes:
    """Tell each character's kind, by its least and greatest byte in all rows."""
    return _kinds()[least, most].tobytes()


class Cell(NamedTuple):
    """A cell, whose numbers are of the type `kind`, which hangs on its width alone."""

    span: Span
    kind: np.dtype[np.floating]
    parts: tuple[Part, ...]
    """From left to right; none if it is the same in all rows."""
    head: Span | None
    """Characters before its parts, if they are a number that is the same in all rows."""
    is_sure: bool
    """In all rows it is a number, of as many digits, or it is the same: no need to check it."""


class Way(NamedTuple):
    """How to read rows of one layout whose characters are of the same kinds."""

    gaps: list[int]
    """Characters between cells that are not blank in all rows."""
    stamps: list[tuple[str, int, bool]]
    """Date and time: where each begins, and whether it is the same in all rows."""
    cells: list[tuple[Cell, int]]
    """That of the GPU's index, and those of the readings; and which part is the first of each."""
    parts: list[Part]
    num_short: int
    """So many parts, the first, are a cell each that has to be checked."""


def find(header: Header, kinds: bytes) -> Way:
    """Find out how to read rows whose characters are of these kinds."""
    layout = _layout(header, len(kinds))
    cells = [_cell(span, kinds[span[0] : span[1]]) for span in layout.cells]
    short = [cell for cell in cells if len(cell.parts) == 1 and not cell.is_sure]
    parts = [part for cell in short for part in cell.parts]
    first = {cell.span: place for place, cell in enumerate(short)}
    for cell in cells:
        if cell.span not in first:
            first[cell.span] = len(parts)
            parts += cell.parts
    return Way(
        gaps=[place for place in layout.gaps if kinds[place] != _BLANK],
        stamps=[
            (name, start, _STEADY.fullmatch(kinds, start, end) is not None)
            for name, (start, end) in layout.stamps
        ],
        cells=[(cell, first[cell.span]) for cell in cells],
        parts=parts,
        num_short=len(short),
    )


class _Layout(NamedTuple):
    """Where what belongs in a row of some length."""

    stamps: tuple[tuple[str, Span], ...]
    cells: tuple[Span, ...]
    gaps: tuple[int, ...]
    """Characters between them."""


@lru_cache(maxsize=64)
def _layout(header: Header, length: int) -> _Layout:
    spans = next(layout.spans for layout in header.layouts if layout.length == length)
    covered = {place for start, end in spans for place in range(start, end)}
    return _Layout(
        tuple(zip(header.names, spans[: header.num_stamps], strict=False)),
        spans[header.num_stamps :],
        tuple(place for place in range(length) if place not in covered),
    )


@lru_cache(maxsize=1024)
def _cell(span: Span, kinds: bytes) -> Cell:
    """Cut a cell into parts, but for what is blank before, or the same in all rows."""
    start, end = span
    is_sure = bool(_STEADY.fullmatch(kinds) or _SURE.fullmatch(kinds))
    before = kinds[: len(kinds) - len(kinds.lstrip(b" nzs" if is_sure else b" "))]
    stops = reversed(range(end, start + len(before), -PART))
    parts = tuple(_part(start, stop) for stop in stops)
    head = (start, max(start, end - PART * len(parts)))
    return Cell(
        span=span,
        kind=np.dtype(np.float32 if end - start <= _NARROW else np.float64),
        parts=parts,
        head=head if parts and before[: head[1] - start].strip(b" ") else None,
        is_sure=is_sure,
    )


def _part(start: int, stop: int) -> Part:
    """Take four characters up to `stop`, or as many as there are from `start` on."""
    place = max(0, stop - PART)
    return Part(place, place - (stop - PART), min(PART, stop - start))
