"""Fixed-width cells to numbers, thousands of rows at a time.

What this accepts, `dmon.parse_row` accepts, with the same values. The reverse need not hold: the
patient way has the last word on rows that are not accepted here.

Four characters at a time are taken for a number, and count if that number is written so.
"""

from __future__ import annotations

from datetime import date
from functools import cache, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from monitor.dmon import NO_READING, parse_date, parse_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from monitor.dmon import Header, Span

_PAD = 16
"""Blanks before each row, so that a part may begin before its cell does."""

_PART = 4
_BLANKS = np.uint32(0x20202020)
_ABSENT = np.uint32(int.from_bytes(b"   -", "little"))
_NUM_VALUES = 15 * 1111 + 1
"""What four half-bytes may come to."""

_NARROW = 7
"""Numbers of up to this many characters are whole in a Float32."""

_CHUNK = 8192
_EPOCH = date(1970, 1, 1).toordinal()
NO_TIME = np.iinfo(np.int64).min
"""Where a row has no time, or no GPU index."""


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


class _Table(NamedTuple):
    """How numbers of up to four digits are written, by the number."""

    leading: NDArray[np.uint32]
    """Blanks before it."""
    inner: NDArray[np.uint32]
    """Zeros before it, as within a longer number."""


@cache
def _table() -> _Table:
    numbers = np.arange(10_000, dtype=np.uint32)
    written = [numbers // 10**e % 10 + np.uint32(ord("0")) for e in (3, 2, 1, 0)]
    table = _Table(np.zeros(_NUM_VALUES, np.uint32), np.zeros(_NUM_VALUES, np.uint32))
    for i, char in enumerate(written):
        table.inner[numbers] |= char << np.uint32(8 * i)
        absent = (numbers < 10 ** (3 - i)) & (i < _PART - 1)
        table.leading[numbers] |= np.where(absent, np.uint32(ord(" ")), char) << np.uint32(8 * i)
    return table


def decode(
    text: NDArray[np.uint8],
    starts: NDArray[np.int64],
    header: Header,
    length: int,
    wanted: frozenset[str] | None,
) -> Rows:
    """Read rows of one length that begin at `starts` in `text`.

    All cells are looked at, so that what counts as a row does not hang on what is `wanted`.
    """
    parts = [
        _decode(_gather(text, starts[i : i + _CHUNK], length), header, length, wanted)
        for i in range(0, len(starts), _CHUNK)
    ]
    return join(parts)


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


def _gather(text: NDArray[np.uint8], starts: NDArray[np.int64], length: int) -> NDArray[np.uint8]:
    rows = np.empty((len(starts), _PAD + length), np.uint8)
    rows[:, :_PAD] = ord(" ")
    rows[:, _PAD:] = sliding_window_view(text, length)[starts]
    return rows


def _decode(
    rows: NDArray[np.uint8], header: Header, length: int, wanted: frozenset[str] | None
) -> Rows:
    spans = _spans(header, length)
    ok = np.ones(len(rows), np.bool_)
    for column in _between(spans, length):
        ok &= rows[:, _PAD + column] == ord(" ")
    none = np.full(len(rows), NO_TIME)
    days = clock_s = none
    for name, (start, _) in zip(header.names[: header.num_stamps], spans, strict=False):
        stamp = _word(rows, start, 8)
        if name == "Date":
            days = _days(stamp)
            ok &= days != NO_TIME
        else:
            clock_s = _clock_s(stamp)
            ok &= clock_s != NO_TIME
    columns: list[NDArray[np.floating]] = []
    for first, count, width in _runs(spans[header.num_stamps :]):
        numbers, sound = _numbers(rows, spans[header.num_stamps + first], count, width)
        ok &= sound
        columns += numbers
    index = columns[0]
    names = header.names[header.num_stamps + 1 :]
    values = {
        name: column
        for name, column in zip(names, columns[1:], strict=True)
        if wanted is None or name in wanted
    }
    ok &= ~(index > 9999)  # noqa: PLR2004 - what the patient reader takes for an index
    gpu = np.where(np.isnan(index), -1, index).astype(np.int32)
    return Rows(ok, days, clock_s, gpu, values)


def _spans(header: Header, length: int) -> tuple[Span, ...]:
    return next(layout.spans for layout in header.layouts if layout.length == length)


@lru_cache(maxsize=64)
def _between(spans: tuple[Span, ...], length: int) -> tuple[int, ...]:
    """List the columns that belong to no cell."""
    covered = {column for start, end in spans for column in range(start, end)}
    return tuple(column for column in range(length) if column not in covered)


@lru_cache(maxsize=64)
def _runs(spans: tuple[Span, ...]) -> tuple[tuple[int, int, int], ...]:
    """Group neighbours of one width: number of the first, how many, width."""
    runs: list[tuple[int, int, int]] = []
    for number, (start, end) in enumerate(spans):
        if runs and runs[-1][2] == end - start:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1, end - start)
        else:
            runs.append((number, 1, end - start))
    return tuple(runs)


def _word(rows: NDArray[np.uint8], start: int, num_bytes: int) -> NDArray[np.unsignedinteger]:
    """Take the bytes from `start` on as one number a row."""
    return np.ndarray(
        (len(rows),),
        f"<u{num_bytes}",
        buffer=rows.data,
        offset=_PAD + start,
        strides=(rows.shape[1],),
    ).copy()


def _numbers(
    rows: NDArray[np.uint8], span: Span, count: int, width: int
) -> tuple[list[NDArray[np.floating]], NDArray[np.bool_]]:
    """Read `count` cells of one width that lie side by side, the first at `span`.

    Returns: their values, column by column, and which rows are sound in all of these cells.
    """
    text = _part(rows, span, 0, count)
    varies = (text != text[:, :1]).any(1)  # many columns never do, and cost next to nothing
    is_long = np.zeros(count, np.bool_)
    for part in range(1, -(-width // _PART)):
        is_long |= (_part(rows, span, part, count) != _BLANKS).any(1)
    columns: list[NDArray[np.floating]] = []
    sound = np.ones(len(rows), np.bool_)
    for number in range(count):
        if is_long[number]:
            shift = number * width
            numbers, fits = _long(rows, (span[0] + shift, span[1] + shift))
        elif varies[number]:
            numbers, fits = _leading(text[number])
        else:
            few, fits = _leading(text[number, :1])
            numbers = np.full(len(rows), few[0])
        columns.append(numbers)
        sound &= fits
    return columns, sound


def _leading(text: NDArray[np.uint32]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Read the last four characters of cells that are no longer than that."""
    value = _value(text)
    sound = np.take(_table().leading, value) == text
    numbers = value.astype(np.float32)
    if not sound.all():
        absent = text == _ABSENT
        numbers[absent] = np.nan
        sound |= absent
    return numbers, sound


def _long(rows: NDArray[np.uint8], span: Span) -> tuple[NDArray[np.floating], NDArray[np.bool_]]:
    """Read one column of which some cells are longer than a part, from left to right."""
    table = _table()
    total = np.zeros(len(rows))
    begun, sound = np.zeros(len(rows), np.bool_), np.ones(len(rows), np.bool_)
    for part in reversed(range(-(-(span[1] - span[0]) // _PART))):
        text = _part(rows, span, part, 1)[0]
        value = _value(text)
        blank = text == _BLANKS
        fits = np.where(begun, np.take(table.inner, value), np.take(table.leading, value)) == text
        sound &= fits | (blank & ~begun if part else (text == _ABSENT) & ~begun)
        total = total * 10**_PART + value
        begun |= ~blank
    total[text == _ABSENT] = np.nan
    return (total if span[1] - span[0] > _NARROW else total.astype(np.float32)), sound


def _part(rows: NDArray[np.uint8], span: Span, part: int, count: int) -> NDArray[np.uint32]:
    """Take four characters of `count` cells, counted from a cell's end; the neighbour's blanked.

    Returns: (count, rows).
    """
    width = span[1] - span[0]
    text = np.ndarray(
        (count, len(rows)),
        "<u4",
        buffer=rows.data,
        offset=_PAD + span[1] - _PART * (part + 1),
        strides=(width, rows.shape[1]),
    ).copy()
    num_inside = min(_PART, width - _PART * part)
    if num_inside == _PART:
        return text
    outside = np.uint32((1 << (8 * (_PART - num_inside))) - 1)
    return (text & ~outside) | (_BLANKS & outside)


def _value(text: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Read four characters as a number, whatever they are; a blank is a zero."""
    value = text & np.uint32(0x0F0F0F0F)  # a digit in each byte, the first lowest
    value *= np.uint32(10 * 2**8 + 1)  # ten times a byte joins the one above it
    value >>= np.uint32(8)
    value &= np.uint32(0x00FF00FF)  # two numbers of two digits
    value *= np.uint32(100 * 2**16 + 1)
    value >>= np.uint32(16)
    return value


def _days(stamps: NDArray[np.unsignedinteger]) -> NDArray[np.int64]:
    """Read days such as 20261121; few differ."""
    first, counts = _stretches(stamps)
    cells = (stamps[i].tobytes().decode("latin-1") for i in first)
    dates = (parse_date(cell) for cell in cells)
    days = [NO_TIME if d is None else d.toordinal() - _EPOCH for d in dates]
    return np.repeat(np.array(days, np.int64), counts)


def _clock_s(stamps: NDArray[np.unsignedinteger]) -> NDArray[np.int64]:
    """Read times of day such as 03:26:31."""
    first, counts = _stretches(stamps)
    chars = stamps[first].view(np.uint8).reshape(-1, 8)
    digits = (chars - ord("0")).astype(np.int64)
    colons = (chars[:, (2, 5)] == ord(":")).all(1)
    parts = digits[:, (0, 3, 6)] * 10 + digits[:, (1, 4, 7)]
    sound = colons & (digits[:, (0, 1, 3, 4, 6, 7)] <= 9).all(1)  # noqa: PLR2004 - a digit
    sound &= (parts < (24, 60, 60)).all(1)
    seconds = np.where(sound, parts @ np.array((3600, 60, 1)), NO_TIME)
    return np.repeat(seconds, counts)


def _stretches(
    stamps: NDArray[np.unsignedinteger],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find where equal neighbours begin, and how many they are."""
    first = np.concatenate(([0], np.flatnonzero(stamps[1:] != stamps[:-1]) + 1))
    return first, np.diff(np.append(first, len(stamps)))
