"""What the monitor saw on a node last: the end of its log, so that a large one takes no longer."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monitor.logs import log_events, newest, throttling
from monitor.logs.columns import COLUMNS
from monitor.logs.follow import GrowingLog
from monitor.runs.history import integer, time_of_day
from rundir import xids
from rundir.paths import gutil_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monitor.logs.newest import GpuNow

_TAIL_BYTES = 2**18  # about 25 minutes of 8 GPUs, a sample every 15 s
_HEAD_BYTES = 2**12
_NAMES = ("sm", "pwr", "gtemp", "pclk", "cpu", "hmem")
_SEEN = {column.field: column.name for column in COLUMNS if column.name in _NAMES}
_FAULT = re.compile(rb"^##(.*\b(?:xid|ecc)\b.*)$", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class NodeLog:
    """The end of one node's log: its rows, and lines that report XID or ECC errors."""

    path: str
    samples: tuple[GpuNow, ...]
    faults: tuple[str, ...]


def of_node(run_dir: str, attempt: Mapping[str, Any], node: object) -> NodeLog:
    """Read the end of a node's log of an attempt, beside the run directory, as `read` does."""
    path = gutil_path(os.path.dirname(run_dir), attempt["job_id"], f"{node}")
    return read(path, attempt["attempt"])


def read(path: str, attempt: object = None) -> NodeLog:
    """Read the end of a log; an empty one where there is nothing to read.

    Of an attempt whose line is in it, it has only the faults since then.
    """
    log = GrowingLog(path, _TAIL_BYTES, _HEAD_BYTES)
    try:
        data = log.file.poll()
    except OSError:
        return NodeLog(path, (), ())
    samples = (
        newest.read_row(line, rows, written_s=None)
        for stretch in (*log.take(data), *log.parser.end())
        for rows in newest.rows_of(stretch)
        for line in rows.text.split(b"\n")
    )
    begin = max(0, data.rfind(f"## attempt: {attempt}\n".encode()))
    lines = (match[1].decode(errors="replace") for match in _FAULT.finditer(data, begin))
    faults = (_fault(line.strip()) for line in lines)
    return NodeLog(path, tuple(one for one in samples if one), tuple(faults))


def _fault(line: str) -> str:
    """Write an event for a person; any other line stays as it is."""
    event = log_events.parse(line.removeprefix(f"{log_events.KEY}: "))
    if event is None:
        return line
    what, text = log_events.described(event)
    known = xids.look_up(event.details["xid"]).meaning if "xid" in event.details else text
    where = "the node" if event.gpu is None else f"GPU {event.gpu}"
    if math.isfinite(event.time_s):
        where += f" at {time_of_day(event.time_s)}"
    return f"{where}: {what}, {known}" if known else f"{where}: {what}"


def last(log: NodeLog, gpu: int | None, until_s: float | None = None) -> GpuNow | None:
    """Give the last sample of a GPU, of any if that GPU has none, up to a moment."""
    fitting = [s for s in log.samples if until_s is None or s.time_s <= until_s + 1]
    mine = [s for s in fitting if s.index == gpu] or fitting
    return mine[-1] if mine else None


def gpu_of(log: NodeLog, attempt: Mapping[str, Any], rank: object) -> int | None:
    """Return the GPU of a rank: the last that the log's own column names, else the local rank's."""
    local = [one["local_rank"] for one in attempt["ranks"] if one["rank"] == rank]
    gpus = [s.index for s in log.samples if rank is not None and s.values.get("rank") == rank]
    return gpus[-1] if gpus else integer(local[0]) if local else None


def seen(log: NodeLog, gpu: int | None, begin_s: float, end_s: float) -> dict[str, object]:
    """Sum up what was seen of a GPU and its host in a time: means, and why clocks were low.

    Empty where there is no sample.
    """
    rows = [s for s in log.samples if begin_s - 1 <= s.time_s <= end_s + 1]
    rows = [s for s in rows if s.index == gpu] or rows
    if not rows:
        return {}
    means = {name: _mean(rows, column) for name, column in _SEEN.items()}
    return {"num_samples": len(rows), **means, "throttle": throttle(rows)}


def throttle(samples: Sequence[GpuNow]) -> list[str]:
    """Name why clocks were low in any of the samples."""
    bits = 0
    for sample in samples:
        bits |= int(sample.values.get("throt") or 0)
    return list(throttling.names(bits))


def _mean(samples: Sequence[GpuNow], column: str) -> float | None:
    values = [v for s in samples if (v := s.values.get(column)) is not None]
    return round(sum(values) / len(values), 1) if values else None
