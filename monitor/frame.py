"""Logs as polars frames: cut by position, whole columns at a time.

A row whose length is not what its header promises is read on its own, by the slow and patient way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from monitor import gutil
from monitor.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_KEYS = ("Date", "Time", "gpu")
_WIDE = frozenset({"energy"})  # its counts pass 2**24, where a Float32 loses whole joules
_TIME = pl.Datetime("ms")
_SEPARATOR = b"\x1f"  # in no log; where a damaged one has it, its line is unreadable anyway
_LOG_NAME = re.compile(r"slurm-[^.]+\.(?P<host>.+)")


@dataclass(frozen=True)
class Log:
    """What one file holds.

    `rows` has `host` (String), `time` (Datetime; UTC where the log tells its offset, else local),
    `gpu` (Int32, null for a node without one), and the log's own columns by their names, as
    Float32 in the log's units (energy as Float64), null where there was no reading.
    """

    path: str
    rows: pl.DataFrame
    facts: dict[str, str]
    num_unreadable: int
    torn: bool
    """The last line has no end: it is still growing, or its writer was killed."""


@dataclass(frozen=True)
class _Segment:
    """Lines `start` to `stop` lie under one header, on one host, at one offset from UTC."""

    start: int
    stop: int
    header: gutil.Header | None
    host: str
    offset: timedelta


def load(path: str) -> Log:
    """Read a log, ours or dmon's, whatever of it can be read.

    Raises:
        UserError: the file cannot be opened.

    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UserError(
            f"log: must be a file that can be read; found {path}: {error.strerror}:"
            " name .gutil files, or a directory that holds some"
        ) from error
    whole, _, rest = data.rpartition(b"\n")
    lines = _lines(whole)
    specials = lines.filter(pl.col("line").str.starts_with("#"))
    facts: dict[str, str] = {}
    segments = _segments(specials.iter_rows(), lines.height, _host_of(path), facts)
    parts = [_read(lines.slice(s.start, s.stop - s.start), s) for s in segments]
    rows = pl.concat([rows for rows, _ in parts], how="diagonal") if parts else _empty()
    return Log(path, rows, facts, sum(bad for _, bad in parts), torn=bool(rest.strip()))


def _lines(data: bytes) -> pl.DataFrame:
    """Split into lines with their numbers; blank ones stay, as nulls."""
    if not data.strip():
        return pl.DataFrame(schema={"number": pl.UInt32, "line": pl.String})
    frame = pl.read_csv(
        BytesIO(data.replace(_SEPARATOR, b"?") + b"\n"),
        has_header=False,
        separator=_SEPARATOR.decode(),  # each line is one field
        quote_char=None,
        schema={"line": pl.String},
        encoding="utf8-lossy",
        truncate_ragged_lines=True,
    )
    return frame.with_row_index("number")


def _host_of(path: str) -> str:
    """Tell the node by the name of its log; what else its own lines say wins."""
    stem = Path(path).stem
    found = _LOG_NAME.fullmatch(stem)
    return found["host"] if found else stem


def _segments(
    specials: Iterable[Sequence[object]], num_lines: int, host: str, facts: dict[str, str]
) -> Iterator[_Segment]:
    """Cut the file where a `#` line changes how the rows under it are read; fills `facts`."""
    state = _Segment(0, num_lines, None, host, timedelta())
    for number, line in specials:
        assert isinstance(number, int)  # noqa: S101 - for the type checker: the row index
        header, known = gutil.parse_header(str(line)), gutil.parse_comment(str(line))
        changed = (header or state.header, state.host, state.offset)
        if known is not None:
            facts[known[0]] = known[1]
            changed = (state.header, *_placed(known, state))
        if changed != (state.header, state.host, state.offset):
            yield _Segment(state.start, number, state.header, state.host, state.offset)
            state = _Segment(number, num_lines, *changed)
    yield state


def _placed(known: tuple[str, str], state: _Segment) -> tuple[str, timedelta]:
    key, value = known
    if key == "host":
        return value, state.offset
    if key == "utc_offset":
        return state.host, _offset(value)
    return state.host, state.offset


def _offset(text: str) -> timedelta:
    found = re.fullmatch(r"([+-])(\d\d):(\d\d)", text)
    if found is None:
        return timedelta()
    offset = timedelta(hours=int(found[2]), minutes=int(found[3]))
    return -offset if found[1] == "-" else offset


def _read(lines: pl.DataFrame, segment: _Segment) -> tuple[pl.DataFrame, int]:
    """Read the rows of a segment, and count the lines that cannot be read."""
    line = pl.col("line")
    is_row = (
        line.is_not_null() & ~line.str.starts_with("#") & (line.str.strip_chars(gutil.BLANKS) != "")
    )
    data = lines.filter(is_row).with_columns(line.str.strip_chars_end("\r"))
    if segment.header is None or data.is_empty():
        return _empty(), data.height
    length = line.str.len_bytes()
    regular = segment.header.row_lengths()
    parts = [
        _cut(data.filter(length == size), segment.header, size)
        for size in dict.fromkeys(regular)
        if segment.header.spans(size)
    ]
    others = data.filter(~length.is_in(regular)) if parts else data
    parts.append(_pick(others, segment.header))
    rows = pl.concat([part for part in parts if part.height] or parts[-1:], how="diagonal")
    rows = rows.sort("number") if len(parts) > 1 else rows
    placed = rows.with_columns(
        pl.lit(segment.host).alias("host"), pl.col("time") - pl.lit(segment.offset)
    )
    return placed.drop("number"), data.height - rows.height


def _cut(data: pl.DataFrame, header: gutil.Header, length: int) -> pl.DataFrame:
    """Read rows of one length by position; those with a cell that is no number are left out."""
    spans = dict(zip(header.names, header.spans(length) or (), strict=True))
    (date, _), (time, time_end) = spans["Date"], spans["Time"]
    line = pl.col("line")
    form = "%Y%m%d" + " " * (time - date - 8) + "%H:%M:%S"
    stamp = line.str.slice(date, time_end - date).str.to_datetime(
        form, time_unit="ms", strict=False
    )
    cells = {n: line.str.slice(s, e - s).str.strip_chars() for n, (s, e) in spans.items()}
    del cells["Date"], cells["Time"]
    cut = data.select("number", stamp.alias("time"), **cells)
    names = list(cells)
    texts = cut.select(names)
    numbers = cut.select(pl.col(name).cast(_type_of(name), strict=False) for name in names)
    sound = [numbers[name].is_not_null() | (texts[name] == gutil.NO_READING) for name in names]
    mask = cut["time"].is_not_null()
    for column in sound:
        mask &= column
    whole = cut.select("number", "time").hstack(numbers)
    return whole if mask.all() else whole.filter(mask)


def _pick(data: pl.DataFrame, header: gutil.Header) -> pl.DataFrame:
    """Read rows one by one; those that cannot be read are left out."""
    read = ((n, gutil.parse_row(line, header)) for n, line in data.iter_rows())
    rows = [(number, row) for number, row in read if row is not None]
    names = [name for name in header.names if name not in _KEYS[:2]]
    schema: dict[str, pl.DataType | type[pl.DataType]] = {"number": pl.UInt32, "stamp": pl.String}
    values = [
        (
            number,
            row.get("Date", "") + row.get("Time", ""),
            *(gutil.parse_value(row[name]) for name in names),
        )
        for number, row in rows
    ]
    frame = pl.DataFrame(values, schema=schema | dict.fromkeys(names, pl.Float64), orient="row")
    stamp = pl.col("stamp").str.to_datetime("%Y%m%d%H:%M:%S", time_unit="ms", strict=False)
    numbers = [pl.col(name).cast(_type_of(name)) for name in names]
    return frame.select("number", stamp.alias("time"), *numbers)


def _type_of(name: str) -> type[pl.DataType]:
    if name == "gpu":
        return pl.Int32
    return pl.Float64 if name in _WIDE else pl.Float32


def _empty() -> pl.DataFrame:
    return pl.DataFrame(schema={"time": _TIME, "gpu": pl.Int32, "host": pl.String})
