"""Fixed-width cells to numbers, thousands of rows at a time.

What this accepts, `dmon.parse_row` accepts, with the same values. The reverse need not hold: the
patient way has the last word on rows that are not accepted here.

Most characters of a log are the same in thousands of rows: a cell of such is read once. Of the
others four characters at a time are taken for a number, and count if that number is written so.
"""

from __future__ import annotations

from datetime import date
from functools import cache, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from monitor.logs.dmon import NO_READING, parse_date, parse_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from monitor.logs.dmon import Header, Span

_PART = 4
_BLANK = ord(" ")
_BLANKS = np.uint32(0x20202020)
_ABSENT = np.uint32(int.from_bytes(b"   -", "little"))
_NUM_VALUES = 15 * 1111 + 1
"""What four half-bytes may come to."""

_NARROW = 7
"""Numbers of up to this many characters are whole in a Float32."""

_MAX_INDEX = 9999
"""What the patient reader takes for a GPU's index."""

_CHUNK = 2**15
"""Rows at a time: what is made of them on the way stays in the processor's cache."""

_GROUP = 32
"""Rows that are compared as one: numpy is slow on short ones."""

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
    """Read rows of one length that begin at `starts` in `text`, which has a further character."""
    rows = sliding_window_view(text, length + 1)[starts]
    return join(list(decode_even(rows, header, wanted)))


def decode_even(
    rows: NDArray[np.uint8], header: Header, wanted: frozenset[str] | None
) -> Iterator[Rows]:
    """Read rows that are a matrix, some thousand at a time.

    All cells are looked at, so that what counts as a row does not hang on what is `wanted`.

    Args:
        rows: (rows, characters), the one that ends the line too, which is overwritten.
        header: what they lie under; one of its layouts has their length.
        wanted: the columns to give, if not all.

    """
    rows[:, -1] = _BLANK  # to borrow from where a cell is shorter than a part
    plan = _plan(header, rows.shape[1] - 1)
    for i in range(0, len(rows), _CHUNK):
        yield _decode(rows[i : i + _CHUNK], plan, wanted)


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


class _Plan(NamedTuple):
    """Where the characters of a row belong, for rows of one layout."""

    names: tuple[str, ...]
    """Of the stamps, of `gpu`, and of the readings."""
    spans: tuple[Span, ...]
    num_stamps: int
    instance: tuple[str, ...]
    """The readings that say which part of a GPU a row speaks of: it counts where they are `-`."""
    gaps: NDArray[np.intp]
    """Characters between cells."""
    front: NDArray[np.bool_]
    """(cells, characters): those of a cell, without stamps, before its last four."""
    last: NDArray[np.intp]
    """(cells, 4): its last four characters; a blank one for each that it lacks."""


@lru_cache(maxsize=64)
def _plan(header: Header, length: int) -> _Plan:
    spans = next(layout.spans for layout in header.layouts if layout.length == length)
    covered = {column for start, end in spans for column in range(start, end)}
    between = [column for column in range(length) if column not in covered]
    cells = np.array(spans[header.num_stamps :])
    columns = np.arange(length + 1)
    front = (columns >= cells[:, :1]) & (columns < cells[:, 1:] - _PART)
    last = cells[:, 1:] + np.arange(-_PART, 0)
    last[last < cells[:, :1]] = length
    gaps = np.array(between, np.intp)
    return _Plan(header.names, spans, header.num_stamps, header.instance, gaps, front, last)


def _decode(rows: NDArray[np.uint8], plan: _Plan, wanted: frozenset[str] | None) -> Rows:
    chars = _Chars(rows, *_extremes(rows))
    ok = np.ones(len(rows), np.bool_)
    if chars.inked()[plan.gaps].any():
        ok &= (rows[:, plan.gaps] == _BLANK).all(1)
    stamps = {"Date": np.full(len(rows), NO_TIME), "Time": np.full(len(rows), NO_TIME)}
    for name, (start, _) in zip(plan.names[: plan.num_stamps], plan.spans, strict=False):
        stamps[name] = (_days if name == "Date" else _clock_s)(_strided(rows, start, "<u8").copy())
        ok &= stamps[name] != NO_TIME
    columns, sound = _columns(chars, plan)
    ok &= sound
    index = columns[0]
    ok &= ~(index > _MAX_INDEX)
    readings = dict(zip(plan.names[plan.num_stamps + 1 :], columns[1:], strict=True))
    for name in plan.instance:
        ok &= np.isnan(readings[name])
    values = {name: c for name, c in readings.items() if wanted is None or name in wanted}
    gpu = np.where(np.isnan(index), -1, index).astype(np.int32)
    return Rows(ok, stamps["Date"], stamps["Time"], gpu, values)


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


class _Chars(NamedTuple):
    """Rows, and of each character its least and greatest byte in them."""

    rows: NDArray[np.uint8]
    least: NDArray[np.uint8]
    most: NDArray[np.uint8]

    def varies(self) -> NDArray[np.bool_]:
        """Tell which are not the same in all rows."""
        return np.not_equal(self.least, self.most)

    def inked(self) -> NDArray[np.bool_]:
        """Tell which are no blank in some row."""
        return np.not_equal(self.least, _BLANK) | np.not_equal(self.most, _BLANK)


class _Parts(NamedTuple):
    """Fours of characters, (parts, rows) each."""

    text: NDArray[np.uint32]
    value: NDArray[np.uint32]
    """What they come to."""
    numbers: NDArray[np.float32]
    """The same."""


def _columns(chars: _Chars, plan: _Plan) -> tuple[list[NDArray[np.floating]], NDArray[np.bool_]]:
    """Read the cells, column by column; and tell which rows are sound in all of them."""
    spans, varies, inked = plan.spans[plan.num_stamps :], chars.varies(), chars.inked()
    is_long = (plan.front & inked).any(1)
    changes = varies[plan.last].any(1) & ~is_long
    steady = ~changes & ~is_long
    longs = {i: _parts_of(spans[i], inked) for i in np.flatnonzero(is_long).tolist()}
    further = [part for parts in longs.values() for part in parts if varies[part].any()]
    parts = _parts(chars.rows, np.concatenate((plan.last[changes], *further), axis=None))
    found: dict[int, NDArray[np.floating]] = {}
    sound = np.ones(len(chars.rows), np.bool_)
    for which, those in ((changes, parts), (steady, _parts(chars.rows[:1], plan.last[steady]))):
        numbers, fits = _short(those, int(which.sum()))
        found |= zip(np.flatnonzero(which).tolist(), numbers, strict=True)
        sound &= fits
    place = int(changes.sum())
    for number, wheres in longs.items():
        found[number], fits = _long(chars, wheres, parts, place)
        place += sum(bool(varies[where].any()) for where in wheres)
        sound &= fits
    columns = [_spread(found[i], len(sound), span) for i, span in enumerate(spans)]
    return columns, sound


def _spread(numbers: NDArray[np.floating], num_rows: int, span: Span) -> NDArray[np.floating]:
    """Give a column its length and its type, which hangs on the column's width alone."""
    kind = np.float64 if span[1] - span[0] > _NARROW else np.float32
    if len(numbers) == num_rows:
        return numbers.astype(kind, copy=False)
    return np.full(num_rows, numbers[0], kind)


def _parts_of(span: Span, inked: NDArray[np.bool_]) -> list[list[int]]:
    """Cut a cell into parts, from left to right, beginning at the first that is inked."""
    begin = span[0] + int(np.argmax(inked[span[0] : span[1]]))
    ends = reversed(range(span[1], begin, -_PART))
    return [[c if c >= span[0] else -1 for c in range(end - _PART, end)] for end in ends]


def _parts(rows: NDArray[np.uint8], where: NDArray[np.intp]) -> _Parts:
    places = where.reshape(-1, _PART).tolist()
    text = np.empty((len(places), len(rows)), "<u4")
    for part, columns in zip(text, places, strict=True):
        if 0 <= columns[0] == columns[-1] - _PART + 1:  # else some are borrowed
            part[:] = _strided(rows, columns[0], "<u4")
        else:
            part[:] = rows.take(columns, 1).view("<u4")[:, 0]
    value = _value(text)
    return _Parts(text, value, value.view(np.int32).astype(np.float32))


def _short(parts: _Parts, num: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Read cells that are no longer than a part, the first `num` of these.

    Returns: (cells, rows), and which rows are sound in all of these cells.
    """
    text, numbers = parts.text[:num], parts.numbers[:num]
    sound = _table().leading.take(parts.value[:num]) == text
    if sound.all():
        return numbers, np.ones(1, np.bool_)
    absent = text == _ABSENT
    numbers[absent] = np.nan
    return numbers, (sound | absent).all(0)


def _long(
    chars: _Chars, wheres: Sequence[Sequence[int]], parts: _Parts, place: int
) -> tuple[NDArray[np.floating], NDArray[np.bool_]]:
    """Read a cell of several parts, of which those that vary begin at `place`, from left to right.

    Returns: its numbers, and which are sound; one of each if they are the same in all rows.
    """
    total, begun, sound = np.zeros(1), np.zeros(1, np.bool_), np.ones(1, np.bool_)
    absent = np.zeros(1, np.bool_)
    for where in wheres:
        least, most = chars.least[where], chars.most[where]
        varies = bool((least != most).any())
        those, k = (parts, place) if varies else (_parts(chars.rows[:1], np.array(where)), 0)
        place += varies
        total = total * 10**_PART + those.numbers[k]
        if begun.all() and least.min() >= ord("0") and most.max() <= ord("9"):
            continue  # four digits in all rows, within a number
        text, last = those.text[k], where is wheres[-1]
        blank, absent = text == _BLANKS, (text == _ABSENT) & last
        fits = _written(those.value[k], begun) == text
        first = absent | fits if last else blank | (fits & (those.value[k] != 0))  # no 0 before
        sound = sound & np.where(begun, fits, first)
        begun = begun | ~blank
    return np.where(absent, np.nan, total) if absent.any() else total, sound


def _written(value: NDArray[np.uint32], begun: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """Tell how a part should be written: with blanks before it, or with zeros within a number."""
    table = _table()
    if begun.all():
        return table.inner.take(value)
    if not begun.any():
        return table.leading.take(value)
    return np.where(begun, table.inner.take(value), table.leading.take(value))


def _strided(rows: NDArray[np.uint8], start: int, kind: str) -> NDArray[np.unsignedinteger]:
    """See the characters from `start` on as one number a row."""
    shape, strides = (len(rows),), (rows.shape[1],)
    return np.ndarray(shape, kind, buffer=rows.data, offset=start, strides=strides)


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
