"""Logs as polars frames, for what looks at rows: `logs` has read them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from monitor.logs import reader
from monitor.logs.cells import NO_TIME

_TIME = pl.Datetime("ms")
_MS_PER_S = 1000


@dataclass(frozen=True)
class Log:
    """What one file holds.

    `rows` has `host` (String), `time` (Datetime; UTC where the log tells its offset, else local,
    and null where rows carry no date or no time), `gpu` (Int32, null for a node without one), and
    the log's own columns by their names, in the log's units, null where there was no reading:
    Float32, or Float64 where that would not hold all that the column's width does.
    """

    path: str
    rows: pl.DataFrame
    facts: dict[str, str]
    num_unreadable: int
    torn: bool
    """The last line has no end: it is still growing, or its writer was killed."""


def load(path: str, columns: frozenset[str] | None = None) -> Log:
    """Read a log, ours or dmon's, whatever of it can be read.

    Raises:
        UserError: the file cannot be read.

    """
    log = reader.read(path, columns)
    hosts = pl.Series([place.host for place in log.places], dtype=pl.String)
    no_time = (log.time_s == NO_TIME) | (not log.dated)
    time = pl.Series(np.where(no_time, 0, log.time_s) * _MS_PER_S).cast(_TIME)
    keys = {
        "host": hosts.gather(log.place.astype(np.uint32)) if len(hosts) else hosts,
        "time": time.set(pl.Series(no_time), None),
        "gpu": pl.Series(log.gpu).set(pl.Series(log.gpu < 0), None),
    }
    values = {name: pl.Series(column, nan_to_null=True) for name, column in log.values.items()}
    rows = pl.DataFrame(keys | values)
    return Log(path, rows, log.facts, log.num_unreadable, log.torn)
