"""What the monitor saw on a node last: read from the end of its log, without polars.

A log may be large and a look at it must be quick, so that only its last part is read.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timezone
from typing import TYPE_CHECKING

from monitor.logs import dmon, files, gutil, throttling
from monitor.logs.columns import NO_READING
from rundir.plain import open_plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_TAIL_BYTES = 2**18  # about 25 minutes of 8 GPUs, a sample every 15 s
_HEAD_BYTES = 2**12
_FAULT = re.compile(r"\bxid\b|\becc\b", re.IGNORECASE)

_COLUMNS = ("sm", "pwr", "gtemp", "fb", "pclk", "mclk", "throt", "cpu", "hmem", "rank")


@dataclass(frozen=True, slots=True)
class Sample:
    """One row: seconds since 1970, the GPU (None: the node has none), readings by column."""

    time_s: float
    gpu: int | None
    values: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class NodeLog:
    """The end of one node's log: its rows, and lines that tell of XID or ECC errors."""

    path: str
    samples: tuple[Sample, ...]
    faults: tuple[str, ...]


def path_of(run_dir: str, job_id: object, node: object) -> str:
    """Where the log of a node lies: beside the run directory."""
    return os.path.join(os.path.dirname(run_dir), f"slurm-{job_id}.{node}.gutil")  # noqa: PTH118, PTH120 - start time


def read(path: str) -> NodeLog:
    """Read the end of a log; an empty one where there is nothing to read."""
    try:
        head, tail = _ends(path)
    except OSError:
        return NodeLog(path, (), ())
    zone = _zone(head)
    faults: list[str] = []
    heads = dmon.Heads()
    stretches: list[tuple[timezone | None, dmon.Header | None, list[str]]] = [(zone, None, [])]
    for line in tail.split("\n")[:-1]:
        if not line.startswith("#"):
            stretches[-1][2].append(line)
            continue
        if not line.startswith("##"):
            heads.see(line)
        else:
            zone = _zone(line) if line.startswith("## utc_offset") else zone
            faults += [line[2:].strip()] if _FAULT.search(line) else []
        stretches.append((zone, heads.header, []))
    samples = [sample for stretch in stretches for sample in _samples(*stretch)]
    return NodeLog(path, tuple(samples), tuple(faults))


def _samples(
    zone: timezone | None, header: dmon.Header | None, lines: Sequence[str]
) -> Iterator[Sample]:
    if header is None:
        return
    header = dmon.settled(header, lines)
    for line in lines:
        row = dmon.parse_row(line, header)
        sample = row and _sample(row, zone)
        if sample:
            yield sample


def last(log: NodeLog, gpu: int | None, until_s: float | None = None) -> Sample | None:
    """Give the last sample of a GPU, of any if that GPU has none, up to a moment."""
    fitting = [s for s in log.samples if until_s is None or s.time_s <= until_s + 1]
    mine = [s for s in fitting if s.gpu == gpu] or fitting
    return mine[-1] if mine else None


def gpu_of(log: NodeLog, rank: object, local_rank: int | None) -> int | None:
    """Tell the GPU of a rank: the last that the log's own column names, else the local rank's."""
    seats = [s.gpu for s in log.samples if rank is not None and s.values.get("rank") == rank]
    return seats[-1] if seats else local_rank


def seen(log: NodeLog, gpu: int | None, begin_s: float, end_s: float) -> dict[str, object]:
    """Sum up what was seen of a GPU and its host in a time: means, and why clocks were low.

    Empty where there is no sample.
    """
    rows = [s for s in log.samples if begin_s - 1 <= s.time_s <= end_s + 1]
    rows = [s for s in rows if s.gpu == gpu] or rows
    if not rows:
        return {}
    return {
        "num_samples": len(rows),
        "sm_pct": _mean(rows, "sm"),
        "power_w": _mean(rows, "pwr"),
        "temp_c": _mean(rows, "gtemp"),
        "sm_clock_mhz": _mean(rows, "pclk"),
        "throttle": throttle(rows),
        "cpu_pct": _mean(rows, "cpu"),
        "mem_used_mib": _mean(rows, "hmem"),
    }


def throttle(samples: Sequence[Sample]) -> list[str]:
    """Name why clocks were low in any of the samples."""
    bits = 0
    for sample in samples:
        bits |= int(sample.values.get("throt") or 0)
    return list(throttling.names(bits))


def _mean(samples: Sequence[Sample], column: str) -> float | None:
    values = [v for s in samples if (v := s.values.get(column)) is not None]
    return round(sum(values) / len(values), 1) if values else None


def _ends(path: str) -> tuple[str, str]:
    with open_plain(path) as file:
        head = file.read(_HEAD_BYTES)
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - _TAIL_BYTES))
        tail = file.read()
    return _text(head), _text(tail)


def _text(data: bytes) -> str:
    """Decode, whatever a machine with Windows made of it: other ends of lines, a byte order."""
    text = data.removeprefix(files.BYTE_ORDER).decode(errors="replace")
    return text.replace("\r\n", "\n")


def _zone(text: str) -> timezone | None:
    """Find the log's offset from UTC; None, this machine's own, where it tells none."""
    found = re.findall(r"^## utc_offset: (.+)$", text, re.MULTILINE)
    offset = gutil.parse_offset(found[-1]) if found else None
    return None if offset is None else timezone(offset)


def _sample(row: dict[str, str], zone: timezone | None) -> Sample | None:
    try:
        moment = datetime.strptime(row["Date"] + row["Time"], "%Y%m%d%H:%M:%S")  # noqa: DTZ007 - local
        placed = moment.replace(tzinfo=zone) if zone else moment.astimezone(UTC)
        gpu = None if row["gpu"] == NO_READING else int(row["gpu"])
    except (KeyError, ValueError, OverflowError):
        return None
    values = {name: dmon.parse_value(row[name]) for name in _COLUMNS if name in row}
    return Sample(placed.timestamp(), gpu, values)
