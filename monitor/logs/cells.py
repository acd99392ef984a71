"""Fixed-width cells to numbers, thousands of rows at a time.

What this accepts, `dmon.parse_row` accepts, with the same values. The reverse need not hold: the
patient way has the last word on rows that are not accepted here.

How the characters of a block vary says how its cells are read (`ways`): most of them once, or
without a check. Of the others four characters at a time are taken for a number (`digits`).
"""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from monitor.logs import digits, ways
from monitor.logs.dmon import NO_READING, NUMBER, parse_date, parse_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from monitor.logs.dmon import Header
    from monitor.logs.ways import Way

_BLANK = ord(" ")
_NEWLINE = ord("\n")

_MAX_INDEX = 9999
"""What the patient reader takes for a GPU's index."""

_GROUP = 32
"""Rows that are compared as one: numpy is slow on short ones."""

_EPOCH = date(1970, 1, 1).toordinal()
NO_TIME = np.iinfo(np.int64).min
"""Where a row has no time, or no GPU index."""

_STAMP_WIDTH = 8
_CLOCK_LEAST = np.frombuffer(b"00:00:00", np.uint8)[:, None]
_CLOCK_MOST = np.frombuffer(b"29:59:59", np.uint8)[:, None]
_CLOCK_S = np.array((36_000, 3_600, 0, 600, 60, 0, 10, 1))
"""Of a time of day's characters the least, the greatest, and what each is worth."""
_DAY_S = 86_400


class Rows(NamedTuple):
    """Cells of some rows: a row counts only where `ok`; a NaN is a reading that does not exist."""

    ok: NDArray[np.bool_]
    days: NDArray[np.int64]
    """Since 1970; NO_TIME where rows carry no date."""
    clock_s: NDArray[np.int64]
    """Since midnight; NO_TIME where rows carry no time."""
    gpu: NDArray[np.int32]
    """-1 where the node has none."""
    values: dict[str, NDArray[np.floating]]


def decode(
    text: NDArray[np.uint8],
    starts: NDArray[np.int64],
    header: Header,
    length: int,
    wanted: frozenset[str] | None,
) -> Rows:
    """Read rows of one length that begin at `starts` in `text`."""
    chars = _Chars.of(sliding_window_view(text, length)[starts])
    return _decode(chars, header, length, wanted)


def decode_even(
    rows: NDArray[np.uint8], header: Header, wanted: frozenset[str] | None
) -> Rows | None:
    """Read rows that are a matrix; None if some line does not end where it should.

    All cells are looked at, so that what counts as a row does not hang on what is `wanted`.

    Args:
        rows: (rows, characters), the one that ends the line too.
        header: what they lie under; one of its layouts has their length.
        wanted: the columns to give, if not all.

    """
    chars = _Chars.of(rows)
    if not chars.least[-1] == chars.most[-1] == _NEWLINE:
        return None
    return _decode(chars, header, rows.shape[1] - 1, wanted)


def join(parts: Sequence[Rows]) -> Rows:
    """Put rows with the same columns one after the other."""
    if len(parts) == 1:
        return parts[0]
    names = parts[0].values
    return Rows(
        np.concatenate([part.ok for part in parts]),
        np.concatenate([part.days for part in parts]),
        np.concatenate([part.clock_s for part in parts]),
        np.concatenate([part.gpu for part in parts]),
        {name: np.concatenate([part.values[name] for part in parts]) for name in names},
    )


def take(rows: Rows, which: NDArray[np.generic]) -> Rows:
    """Choose rows by a mask or by their numbers."""
    values = {name: column[which] for name, column in rows.values.items()}
    return Rows(rows.ok[which], rows.days[which], rows.clock_s[which], rows.gpu[which], values)


def from_text(
    rows: Sequence[Mapping[str, str]], header: Header, wanted: frozenset[str] | None
) -> Rows:
    """Take over rows that `dmon.parse_row` has read."""
    none = np.full(len(rows), NO_TIME)
    dates = [parse_date(row["Date"]) for row in rows if "Date" in row]
    days = [d.toordinal() - _EPOCH for d in dates if d is not None]
    clocks = [tuple(map(int, row["Time"].split(":"))) for row in rows if "Time" in row]
    clock_s = [3600 * hours + 60 * minutes + seconds for hours, minutes, seconds in clocks]
    gpu = [-1 if row["gpu"] == NO_READING else int(row["gpu"]) for row in rows]
    names = header.names[header.num_stamps + 1 :]
    values = {
        name: np.array([parse_value(row[name]) for row in rows], np.float64)
        for name in names
        if wanted is None or name in wanted
    }
    return Rows(
        np.ones(len(rows), np.bool_),
        np.array(days, np.int64) if days else none,
        np.array(clock_s, np.int64) if clock_s else none,
        np.array(gpu, np.int32),
        dict(values),
    )


class _Chars(NamedTuple):
    """Rows, and of each character its least and greatest byte in them."""

    rows: NDArray[np.uint8]
    least: NDArray[np.uint8]
    most: NDArray[np.uint8]

    @classmethod
    def of(cls, rows: NDArray[np.uint8]) -> _Chars:
        """Look at all rows."""
        return cls(rows, *_extremes(rows))


def _extremes(rows: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Find each character's least and greatest byte over all rows."""
    whole = len(rows) // _GROUP * _GROUP
    rest, groups = rows[whole:], rows[:whole].reshape(-1, _GROUP * rows.shape[1])
    least, most = np.full(rows.shape[1], 255, np.uint8), np.zeros(rows.shape[1], np.uint8)
    if whole:
        least = groups.min(0).reshape(_GROUP, -1).min(0)
        most = groups.max(0).reshape(_GROUP, -1).max(0)
    return (
        np.minimum(least, rest.min(0, initial=255)),
        np.maximum(most, rest.max(0, initial=0)),
    )


def _decode(chars: _Chars, header: Header, length: int, wanted: frozenset[str] | None) -> Rows:
    rows, num_rows = chars.rows, len(chars.rows)
    way = ways.find(header, ways.kinds_of(chars.least[:length], chars.most[:length]))
    ok = np.ones(num_rows, np.bool_)
    if way.gaps:
        ok &= (rows[:, way.gaps] == _BLANK).all(1)
    absent = (name for name in ("Date", "Time") if name not in header.names)
    stamps = {name: np.full(num_rows, NO_TIME) for name in absent}
    for name, start, is_steady in way.stamps:
        texts, counts = _stamps(rows, start, is_steady=is_steady)
        told = (_days if name == "Date" else _clock_s)(texts)
        stamps[name] = np.repeat(told, counts)
        if (told == NO_TIME).any():
            ok &= stamps[name] != NO_TIME
    (index, *readings), sound = _columns(chars, way)
    ok &= sound
    ok &= ~(index > _MAX_INDEX)
    values = dict(zip(header.names[header.num_stamps + 1 :], readings, strict=True))
    for name in header.instance:
        ok &= np.isnan(values[name])
    values = {name: c for name, c in values.items() if wanted is None or name in wanted}
    index[np.isnan(index)] = -1
    gpu = index.astype(np.int32)
    return Rows(ok, stamps["Date"], stamps["Time"], gpu, values)


def _columns(chars: _Chars, way: Way) -> tuple[list[NDArray[np.floating]], NDArray[np.bool_]]:
    """Read the cells, column by column; and tell which rows are sound in all of them."""
    parts = digits.read(chars.rows, way.parts)
    sound = digits.check_short(parts, way.num_short)
    numbers = list(parts.numbers)
    columns: list[NDArray[np.floating]] = []
    for cell, first in way.cells:
        end = first + len(cell.parts)
        if not cell.parts:  # the same in all rows
            number = _number(chars.least[slice(*cell.span)].tobytes())
            columns.append(np.full(len(chars.rows), number, cell.kind))
            sound = sound & (number is not None)
            continue
        head = float(chars.least[slice(*cell.head)].tobytes()) if cell.head else 0
        columns.append(digits.join(head, numbers[first:end], cell.kind))
        if not cell.is_sure and first >= way.num_short:  # the short ones are checked
            fits, absent = digits.check_long(parts, first, end)
            columns[-1][absent] = np.nan
            sound = sound & fits
    return columns, sound


def _number(cell: bytes) -> float | None:
    """Read a single cell: NaN if it is `-`, None if it is no number."""
    text = cell.decode("latin-1").lstrip(" ")
    if not NUMBER.fullmatch(text):
        return None
    number = parse_value(text)
    return np.nan if number is None else number


def _stamps(
    rows: NDArray[np.uint8], start: int, *, is_steady: bool
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Find the stamps that differ from the one above, (stamps, 8), and how many rows each has."""
    if is_steady:
        return rows[:1, start : start + _STAMP_WIDTH], np.array([len(rows)])
    stamps = np.ndarray((len(rows),), "<u8", rows.data, start, (rows.shape[1],)).copy()
    first = np.concatenate(([0], np.flatnonzero(stamps[1:] != stamps[:-1]) + 1))
    texts = stamps[first].view(np.uint8).reshape(-1, _STAMP_WIDTH)
    return texts, np.diff(np.append(first, len(stamps)))


def _days(texts: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Read days such as 20261121; few differ."""
    dates = (parse_date(text.tobytes().decode("latin-1")) for text in texts)
    days = [NO_TIME if d is None else d.toordinal() - _EPOCH for d in dates]
    return np.array(days, np.int64)


def _clock_s(texts: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Read times of day such as 03:26:31."""
    above = np.ascontiguousarray(texts.T) - _CLOCK_LEAST  # what is less wraps around
    seconds = _CLOCK_S @ above
    sound = (above <= _CLOCK_MOST - _CLOCK_LEAST).all(0) & (seconds < _DAY_S)
    return np.where(sound, seconds, NO_TIME)
