"""The rows under one header, from their lines: as a matrix, by length, or one by one.

Our logs, and nearly all of dmon's, are a matrix of characters: that is the quick way. A line that
does not fit is read by its length with others of that length, and what is left by
`dmon.parse_row`, which has the last word: each way accepts only what it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from monitor.logs import cells, dmon

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Numbered = tuple[NDArray[np.int64], cells.Rows]

_NEWLINE = ord("\n")
_RETURN = ord("\r")


def read(
    text: NDArray[np.uint8], header: dmon.Header | None, wanted: frozenset[str] | None
) -> tuple[list[cells.Rows], int]:
    """Read rows, in their order; and count the lines that cannot be read.

    Args:
        text: whole lines, none of which begins with `#`.
        header: what they lie under; None: nothing can be read.
        wanted: the columns to give, if not all.

    """
    if header is None:
        return [], sum(1 for line in text.tobytes().split(b"\n") if not _is_blank(line))
    matrix = _matrix(text, header)
    rows = None if matrix is None else cells.decode_even(matrix, header, wanted)
    if matrix is None or rows is None:
        return _by_length(text, header, wanted)
    return _mended(rows, matrix, header, wanted)


def _matrix(text: NDArray[np.uint8], header: dmon.Header) -> NDArray[np.uint8] | None:
    """See the text as rows as long as the first; None if that cannot be."""
    if not text.size:
        return None
    width = int(np.argmax(text[: header.max_length + 1] == _NEWLINE)) + 1
    if len(text) % width or width - 1 not in {layout.length for layout in header.layouts}:
        return None
    return text.reshape(-1, width)


def _mended(
    rows: cells.Rows,
    matrix: NDArray[np.uint8],
    header: dmon.Header,
    wanted: frozenset[str] | None,
) -> tuple[list[cells.Rows], int]:
    """Look again at rows of a matrix that were not accepted: they may hold several short lines."""
    if rows.ok.all():
        return [rows], 0
    odd = np.flatnonzero(~rows.ok).tolist()
    lines = [(row, line) for row in odd for line in matrix[row].tobytes()[:-1].split(b"\n")]
    read, num_unreadable = _patiently(lines, header, wanted)
    return _in_order([(np.flatnonzero(rows.ok), cells.take(rows, rows.ok)), *read]), num_unreadable


def _by_length(
    text: NDArray[np.uint8], header: dmon.Header, wanted: frozenset[str] | None
) -> tuple[list[cells.Rows], int]:
    ends = np.flatnonzero(text == _NEWLINE)
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1))[: len(ends)]
    ends = ends - ((ends > starts) & (text[ends - 1] == _RETURN))
    left = ends > starts
    found: list[Numbered] = []
    for layout in header.layouts:
        fits = np.flatnonzero(left & (ends - starts == layout.length))
        if fits.size:
            rows = cells.decode(text, starts[fits], header, layout.length, wanted)
            found.append((fits[rows.ok], cells.take(rows, rows.ok)))
            left[fits[rows.ok]] = False
    odd = np.flatnonzero(left).tolist()
    lines = [(number, text[starts[number] : ends[number]].tobytes()) for number in odd]
    read, num_unreadable = _patiently(lines, header, wanted)
    return _in_order([*found, *read]), num_unreadable


def _patiently(
    lines: Sequence[tuple[int, bytes]], header: dmon.Header, wanted: frozenset[str] | None
) -> tuple[list[Numbered], int]:
    """Read numbered lines one by one, and count those that cannot be read."""
    texts = [(number, line.decode("utf-8", "replace")) for number, line in lines]
    told = [(number, text) for number, text in texts if text.strip(dmon.BLANKS)]
    read = [(number, dmon.parse_row(text, header)) for number, text in told]
    rows = [(number, row) for number, row in read if row is not None]
    if not rows:
        return [], len(told)
    numbers = np.array([number for number, _ in rows], np.int64)
    made = cells.from_text([row for _, row in rows], header, wanted)
    return [(numbers, made)], len(told) - len(rows)


def _in_order(found: Sequence[Numbered]) -> list[cells.Rows]:
    """Put rows into the order of their numbers."""
    found = [(numbers, rows) for numbers, rows in found if numbers.size]
    if len(found) < 2:  # noqa: PLR2004 - already so
        return [rows for _, rows in found]
    order = np.argsort(np.concatenate([numbers for numbers, _ in found]), kind="stable")
    return [cells.take(cells.join([rows for _, rows in found]), order)]


def _is_blank(line: bytes) -> bool:
    return not line.strip(dmon.BLANKS.encode())
