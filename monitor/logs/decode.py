"""Rows of text to numbers, thousands at a time: polars matches, cuts and converts them.

A row counts only if `dmon.parse_row` reads it, with the same values. Of rows in fixed columns a
pattern made from the header says as much; rows of other kinds are read one by one.
"""

from __future__ import annotations

from datetime import date
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from monitor.logs import dmon

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from monitor.logs.dmon import Cells, Header, Span
    from monitor.logs.parser import Stretch

NO_TIME = np.iinfo(np.int64).min
"""Where a row has no time."""

_NARROW_CELL = 7
"""Numbers of up to this many characters are whole in a Float32."""
_BLANK = f"^[{dmon.BLANKS}]*$"
_EPOCH = date(1970, 1, 1).toordinal()


class Rows(NamedTuple):
    """Rows in the order of their lines; a NaN is a reading that does not exist."""

    line: NDArray[np.int64]
    """Which of the lines each is."""
    days: NDArray[np.int64]
    """Since 1970; NO_TIME where rows carry no date."""
    clock_s: NDArray[np.int64]
    """Since midnight; NO_TIME where rows carry no time."""
    gpu: NDArray[np.int32]
    """-1 where the node has none."""
    values: dict[str, NDArray[np.floating]]

    def take(self, which: NDArray[np.generic] | slice) -> Rows:
        """Choose rows."""
        values = {name: column[which] for name, column in self.values.items()}
        return Rows(
            self.line[which], self.days[which], self.clock_s[which], self.gpu[which], values
        )


class Decoded(NamedTuple):
    """What a stretch holds."""

    rows: Rows
    num_unreadable: int


def decode(stretches: Sequence[Stretch], wanted: frozenset[str] | None = None) -> list[Decoded]:
    """Decode stretches, those under the same header together: of their columns those `wanted`."""
    found: list[Decoded | None] = [None] * len(stretches)
    by_header: dict[Header | None, list[int]] = {}
    for number, stretch in enumerate(stretches):
        by_header.setdefault(stretch.header, []).append(number)
    for header, numbers in by_header.items():
        texts = [b"".join(stretches[number].texts) for number in numbers]
        for number, decoded in zip(numbers, _decode(texts, header, wanted), strict=True):
            found[number] = decoded
    return [decoded for decoded in found if decoded is not None]


def _decode(
    texts: Sequence[bytes], header: Header | None, wanted: frozenset[str] | None
) -> Iterable[Decoded]:
    text = b"".join(texts)
    lines = _lines(text)
    if header is None:
        rows = _no_rows()
    elif header.layouts:
        rows = _fixed(lines, header, wanted)
    else:
        rows = _one_by_one(lines, header, wanted)
    is_unread = np.ones(len(lines), np.bool_)
    is_unread[rows.line] = False
    unread = np.flatnonzero(is_unread)
    unread = unread[~lines.gather(unread).str.contains(_BLANK).to_numpy()]
    nums = [len(lines)] if len(texts) == 1 else [text.count(b"\n") for text in texts]
    ends = np.cumsum(nums)
    edges = [np.searchsorted(lines_of, [0, *ends]).tolist() for lines_of in (rows.line, unread)]
    for begin, end, num_before, num in zip(
        edges[0][:-1], edges[0][1:], edges[1][:-1], edges[1][1:], strict=True
    ):
        yield Decoded(rows.take(slice(begin, end)), num - num_before)


def _lines(text: bytes) -> pl.Series:
    text = b"\n" + text  # else polars inflates what begins as a compressed file does
    try:
        lines = pl.read_lines(text).to_series()
    except pl.exceptions.ComputeError:  # it is not UTF-8
        lines = pl.read_lines(text.decode("utf-8", "replace").encode()).to_series()
    return lines.slice(1)


def _fixed(lines: pl.Series, header: Header, wanted: frozenset[str] | None) -> Rows:
    """Read the rows that lie in one of a header's layouts."""
    found = []
    for layout in header.layouts:
        line = lines.str.contains(_pattern(header, layout)).arg_true()
        if not line.len():
            continue
        own = lines if line.len() == lines.len() else lines.gather(line)
        rows = _convert(own, header, layout, wanted)._replace(line=line.to_numpy().astype(np.int64))
        is_day = rows.days != NO_TIME
        found.append(rows if is_day.all() or "Date" not in header.names else rows.take(is_day))
    return _in_order(found) if found else _no_rows()


@lru_cache(maxsize=64)
def _pattern(header: Header, layout: Cells) -> str:
    """Write down what `dmon.parse_row` accepts of rows in this layout."""
    parts, place = [], 0
    for name, (start, end) in zip(header.names, layout.spans, strict=True):
        parts.append(" " * (start - place) + _cell_pattern(name, end - start, header))
        place = end
    return f"^{''.join(parts)}{' ' * (layout.length - place)}$"


def _cell_pattern(name: str, width: int, header: Header) -> str:
    if name in ("Date", "Time"):
        return "[0-9]{8}" if name == "Date" else dmon.CLOCK.pattern
    absent = f" {{{width - 1}}}-"
    if name in header.instance:
        return absent  # a row of a part of a GPU is not the GPU's
    most = min(width, dmon.MAX_INDEX_DIGITS) if name == "gpu" else width
    numbers = [f" {{{width - num}}}[1-9][0-9]{{{num - 1}}}" for num in range(1, most + 1)]
    return f"(?:{absent}| {{{width - 1}}}0|{'|'.join(numbers)})"


def _convert(rows: pl.Series, header: Header, layout: Cells, wanted: frozenset[str] | None) -> Rows:
    """Convert rows that match their pattern."""
    spans = dict(zip(header.names, layout.spans, strict=True))
    readings = header.names[header.num_stamps + 1 :]
    names = [name for name in readings if wanted is None or name in wanted]
    cells = {name: _reading(spans[name]) for name in names}
    cells["gpu"] = _whole(spans["gpu"]).fill_null(-1)
    if "Date" in spans:
        cells["Date"] = _whole(spans["Date"])
    if "Time" in spans:
        start = spans["Time"][0]
        hours, minutes, seconds = (_whole((start + at, start + at + 2)) for at in (0, 3, 6))
        cells["Time"] = (3600 * hours + 60 * minutes + seconds).cast(pl.Int64)
    found = rows.alias("row").to_frame().select(**cells)
    none = np.full(len(rows), NO_TIME)
    return Rows(
        np.arange(len(rows)),
        _days(found["Date"]) if "Date" in spans else none,
        found["Time"].to_numpy() if "Time" in spans else none,
        found["gpu"].to_numpy(),
        {name: found[name].to_numpy() for name in names},
    )


def _reading(span: Span) -> pl.Expr:
    """Convert a cell to a number; null: it is `-`."""
    if span[1] - span[0] <= _NARROW_CELL:
        return _whole(span).cast(pl.Float32)
    return _text(span).cast(pl.Float64, strict=False)


def _whole(span: Span) -> pl.Expr:
    return _text(span).cast(pl.Int32, strict=False)


def _text(span: Span) -> pl.Expr:
    start, end = span
    return pl.col("row").str.slice(start, end - start).str.strip_chars_start(" ")


def _days(dates: pl.Series) -> NDArray[np.int64]:
    """Read days such as 20261121, of which few differ; NO_TIME where there is no such day."""
    distinct = dates.unique().to_list()
    days = [_day(dmon.parse_date(f"{day:08}")) for day in distinct]
    return dates.replace_strict(distinct, days, return_dtype=pl.Int64).to_numpy()


def _day(day: date | None) -> int:
    return int(NO_TIME) if day is None else day.toordinal() - _EPOCH


def _one_by_one(lines: pl.Series, header: Header, wanted: frozenset[str] | None) -> Rows:
    """Read rows that do not lie in fixed columns."""
    parsed = ((n, dmon.parse_row(line, header)) for n, line in enumerate(lines))
    found = [(number, row) for number, row in parsed if row is not None]
    rows = [row for _, row in found]
    names = header.names[header.num_stamps + 1 :]
    values = {
        name: np.array([dmon.parse_value(row[name]) for row in rows], np.float64)
        for name in names
        if wanted is None or name in wanted
    }
    return Rows(
        np.array([number for number, _ in found], np.int64),
        np.array([_day(dmon.parse_date(row.get("Date", ""))) for row in rows], np.int64),
        np.array([_clock_s(row) for row in rows], np.int64),
        np.array([-1 if row["gpu"] == "-" else int(row["gpu"]) for row in rows], np.int32),
        dict(values),
    )


def _clock_s(row: Mapping[str, str]) -> int:
    if "Time" not in row:
        return int(NO_TIME)
    hours, minutes, seconds = map(int, row["Time"].split(":"))
    return 3600 * hours + 60 * minutes + seconds


def _in_order(found: Sequence[Rows]) -> Rows:
    """Put rows of several layouts into the order of their lines."""
    if len(found) == 1:
        return found[0]
    joined = Rows(
        np.concatenate([rows.line for rows in found]),
        np.concatenate([rows.days for rows in found]),
        np.concatenate([rows.clock_s for rows in found]),
        np.concatenate([rows.gpu for rows in found]),
        {name: np.concatenate([rows.values[name] for rows in found]) for name in found[0].values},
    )
    return joined.take(np.argsort(joined.line, kind="stable"))


def _no_rows() -> Rows:
    none = np.empty(0, np.int64)
    return Rows(none, none, none, none.astype(np.int32), {})
