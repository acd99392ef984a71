"""The rows of logs as one table: CSV, Parquet or JSON lines, with units in the columns' names."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from monitor.logs import facts, files, gutil, reader
from monitor.logs.columns import COLUMNS
from monitor.logs.decode import NO_TIME

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from monitor.logs.log import Log

_TIME = pl.Datetime("ms", "UTC")
_MS_PER_S = 1000
_QUARTER_S = 900
"""Zones are shifted by multiples of this."""

_MUCH_BYTES = 2**26
"""Logs of more than this are not held in memory together."""

NAMES = {column.name: column.table_name for column in COLUMNS if column.means_in_dmon}
"""What the log's columns are called here. A column that is not known keeps its name."""

OUR_NAMES = {column.name: column.table_name for column in COLUMNS}
"""The same in our own logs: what dmon has in another unit is so called only where we wrote it."""


def write(paths: Sequence[str], form: str, target: str, scratch: str) -> dict[str, int]:
    """Write the rows of logs, log by log, to `target`; where a log lacks a column, it is null.

    Args:
        paths: of the logs.
        form: `csv`, `parquet` or `jsonl`.
        target: written over.
        scratch: a directory with room for a copy of what is written, if that is much.

    Returns: of which logs how many rows could not be read.

    Raises:
        UserError: a log cannot be read, or none of them is one.

    """
    num_foreign, unread = 0, {}
    with tempfile.TemporaryDirectory(prefix=".export.", dir=scratch) as folder:
        is_much = sum(map(files.size_bytes, paths)) > _MUCH_BYTES
        parts = []
        for number, path in enumerate(paths):
            log = reader.read(path)
            if log.num_unreadable:
                unread[path] = log.num_unreadable
            num_foreign += log.is_foreign
            rows = table(log)
            if is_much:
                part = os.path.join(folder, f"{number}.parquet")
                with _disk_errors():
                    rows.write_parquet(part, compression="lz4")
                parts.append(pl.scan_parquet(part))
            else:
                parts.append(rows.lazy())
        if num_foreign == len(paths):
            reader.refuse_foreign(paths[0])
        with _disk_errors():
            _sink(pl.concat(parts, how="diagonal_relaxed"), form, target)
    return unread


def table(log: Log) -> pl.DataFrame:
    """Give the rows of a log: `time_utc`, `job`, `node`, `gpu`, `uuid`, and its readings.

    Readings are whole numbers as in the log, null where there are none. Where the log states no
    offset from UTC, its times are taken to be this machine's.
    """
    gpu = pl.Series(log.gpu)
    uuids, (unit,) = facts.uuids([log])
    keys = {
        "time_utc": _times(log),
        "job": _of_place(log, [place.job for place in log.places]),
        "node": _of_place(log, [place.host for place in log.places]),
        "gpu": gpu.set(gpu < 0, None),
        "uuid": pl.Series([None, *uuids[1:]], dtype=pl.String).gather(unit.astype(np.uint32)),
    }
    names = OUR_NAMES if "monitor" in log.facts else NAMES
    values = {
        names.get(name, name): pl.Series(column, nan_to_null=True).cast(pl.Int64)
        for name, column in log.values.items()
    }
    return pl.DataFrame(keys | values)


def _of_place(log: Log, names: Sequence[str | None]) -> pl.Series:
    series = pl.Series(names, dtype=pl.String)
    return series.gather(log.place.astype(np.uint32)) if names else series


def _times(log: Log) -> pl.Series:
    no_time = (log.time_s == NO_TIME) | (not log.dated)
    time_s = np.where(no_time, 0, log.time_s)
    if gutil.parse_offset(log.facts.get("utc_offset", "")) is None:
        time_s = _from_local(time_s)
    series = pl.Series(time_s * _MS_PER_S).cast(pl.Datetime("ms")).dt.replace_time_zone("UTC")
    return series.set(pl.Series(no_time), None).cast(_TIME)


def _from_local(time_s: NDArray[np.int64]) -> NDArray[np.int64]:
    """Take times of this machine's zone to UTC; an hour that comes twice is the first one."""
    quarters, which = np.unique(time_s // _QUARTER_S, return_inverse=True)
    starts = [_local_start(int(quarter) * _QUARTER_S) for quarter in quarters]
    shifts = np.array(starts, np.int64) - quarters * _QUARTER_S
    return np.asarray(time_s + shifts[which])


def _local_start(local_s: int) -> int:
    moment = time.gmtime(local_s)
    return int(time.mktime((*moment[:6], 0, 0, -1)))


@contextmanager
def _disk_errors() -> Iterator[None]:
    """Raise OSError for what polars calls an error of computing, such as Parquet on a full disk."""
    try:
        yield
    except pl.exceptions.ComputeError as error:
        raise OSError(errno.EIO, f"it cannot be written whole ({error})") from error


def _sink(rows: pl.LazyFrame, form: str, target: str) -> None:
    if form == "parquet":
        rows.sink_parquet(target)
        return
    written = rows.with_columns(pl.col("time_utc").dt.strftime("%Y-%m-%dT%H:%M:%SZ"))
    if form == "csv":
        written.sink_csv(target)
    else:
        written.sink_ndjson(target)
