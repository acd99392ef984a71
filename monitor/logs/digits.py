"""Numbers of up to four characters, thousands at a time.

Any four characters are taken for a number; they are one if that number is written so.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

PART = 4
"""Characters that are looked at as one."""

_BLANKS = np.uint32(0x20202020)
_ABSENT = np.uint32(int.from_bytes(b"   -", "little"))
_NUM_VALUES = 15 * 1111 + 1
"""What four half-bytes may come to."""


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
        absent = (numbers < 10 ** (3 - i)) & (i < PART - 1)
        table.leading[numbers] |= np.where(absent, np.uint32(ord(" ")), char) << np.uint32(8 * i)
    return table


class Part(NamedTuple):
    """Up to four characters of a cell: at `place` and after it, moved on by `shift`."""

    place: int
    shift: int
    num_kept: int
    """How many of them, the last ones, are the cell's."""


class Parts(NamedTuple):
    """Fours of characters, (parts, rows) each."""

    text: NDArray[np.uint32]
    value: NDArray[np.uint32]
    """What they come to."""
    numbers: NDArray[np.float32]
    """The same."""


def read(rows: NDArray[np.uint8], parts: Sequence[Part]) -> Parts:
    """Read these parts of all rows, (rows, characters), which lie one after the other."""
    text = np.empty((len(parts), len(rows)), "<u4")
    for mine, (place, shift, kept) in zip(text, parts, strict=True):
        four = np.ndarray((len(rows),), "<u4", rows.data, place, (rows.shape[1],))
        if kept == PART:
            mine[:] = four
        else:  # the others are not the cell's
            lacking = np.uint32(2 ** (8 * (PART - kept)) - 1)
            mine[:] = (four << np.uint32(8 * shift)) & ~lacking | _BLANKS & lacking
    value = _value(text)
    return Parts(text, value, value.view(np.int32).astype(np.float32))


def _value(text: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Read four characters as a number, whatever they are; a blank is a zero."""
    value = text & np.uint32(0x0F0F0F0F)  # a digit in each byte, the first lowest
    value *= np.uint32(10 * 2**8 + 1)  # ten times a byte joins the one above it
    value >>= np.uint32(8)
    value &= np.uint32(0x00FF00FF)  # two numbers of two digits
    value *= np.uint32(100 * 2**16 + 1)
    value >>= np.uint32(16)
    return value


def check_short(parts: Parts, num: int) -> NDArray[np.bool_]:
    """Tell which rows are sound in the first `num` parts, each a cell of its own.

    A number there becomes NaN where its cell is `-`.

    Returns: one for each row; a single one if all are sound.
    """
    text, numbers = parts.text[:num], parts.numbers[:num]
    sound = _table().leading.take(parts.value[:num]) == text
    if sound.all():
        return np.ones(1, np.bool_)
    absent = text == _ABSENT
    numbers[absent] = np.nan
    checked: NDArray[np.bool_] = (sound | absent).all(0)
    return checked


def join(
    head: float, numbers: Sequence[NDArray[np.float32]], kind: np.dtype[np.floating]
) -> NDArray[np.floating]:
    """Put a cell together: what is the same in all rows, and its parts, the leftmost first."""
    total = numbers[0].astype(kind, copy=False)
    if head:
        total = total + head * 10**PART
    for further in numbers[1:]:
        total = total * 10**PART + further
    return total


def check_long(parts: Parts, first: int, end: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Look at a cell of several parts, from left to right.

    Returns: which rows are sound in it, and where it is `-`.
    """
    begun, sound = (np.full(parts.text.shape[1], is_so) for is_so in (False, True))
    for text, value in zip(parts.text[first : end - 1], parts.value[first : end - 1], strict=True):
        blank = text == _BLANKS
        begins = (_table().leading.take(value) == text) & (value != 0)  # no 0 before a number
        sound &= np.where(begun, _table().inner.take(value) == text, blank | begins)
        begun |= ~blank
    text, value = parts.text[end - 1], parts.value[end - 1]
    absent = (text == _ABSENT) & ~begun
    alone = absent | (_table().leading.take(value) == text)
    return sound & np.where(begun, _table().inner.take(value) == text, alone), absent
