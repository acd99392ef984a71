"""What the newest samples of GPUs and nodes come to as metrics, in base units."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING

from monitor.export.openmetrics import Metric
from monitor.logs import throttling
from monitor.logs.columns import COLUMNS, SIGNS_OF_LIFE
from monitor.logs.gutil import parse_number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from monitor.export.openmetrics import Metrics
    from monitor.logs.columns import Column
    from monitor.logs.newest import GpuNow, NodeNow

    _Labels = dict[str, str | None]

_PCT = 0.01
_MIB = 2**20
_SCALES = {"%": _PCT, "MB": _MIB, "MB/s": 1e6, "MHz": 1e6}
"""How many of the base unit one of a column's is."""


def _metrics(*parts: str, prefix: str) -> tuple[tuple[Column, Metric], ...]:
    return tuple(
        (column, Metric(f"{prefix}_{column.metric}", column.help))
        for column in COLUMNS
        if column.metric and column.of in parts
    )


GPU_METRICS = _metrics("gpu", "rank", prefix="ddp_gpu")
NODE_METRICS = _metrics("host", prefix="ddp_node")

GPU_INFO = Metric("ddp_gpu_info", "What is known of a GPU, as labels; always 1.")
GPU_UP = Metric("ddp_gpu_up", "1 if the GPU answered when the newest sample was taken, else 0.")
GPU_MEMORY = Metric("ddp_gpu_memory_total_bytes", "Memory that the GPU has.")
GPU_POWER_LIMIT = Metric("ddp_gpu_power_limit_watts", "Power limit.")
GPU_THROTTLED = Metric("ddp_gpu_throttled", "1 if clocks are held down for this reason, else 0.")
GPU_EVENTS = Metric("ddp_gpu_events_total", "XID, ECC and other events in the job's log.")
GPU_EVENT_TIME = Metric(
    "ddp_gpu_event_last_timestamp_seconds", "When such an event was last seen, since 1970."
)
NODE_SAMPLE_TIME = Metric(
    "ddp_node_last_sample_timestamp_seconds", "When the newest sample was taken, since 1970."
)
NODE_MEMORY = Metric("ddp_node_memory_total_bytes", "Memory that the host has.")

_GPU_FACT = re.compile(r"(?P<uuid>\S+)(?: (?P<name>.+))?")


def add(metrics: Metrics, nodes: Iterable[NodeNow]) -> None:
    """Add the newest samples; of several logs of a node in a job, the newest one counts."""
    ordered = sorted(nodes, key=lambda node: node.newest.time_s)
    for node in {(node.job, node.host): node for node in ordered}.values():
        labels: _Labels = {"job": node.job, "user": node.facts.get("user"), "node": node.host}
        _add_node(metrics, node, labels)
        for gpu in sorted(node.gpus, key=lambda gpu: gpu.index or 0):
            if gpu.index is not None:
                _add_gpu(metrics, node, gpu, labels | {"gpu": str(gpu.index)})


def _add_node(metrics: Metrics, node: NodeNow, labels: _Labels) -> None:
    metrics.put(NODE_SAMPLE_TIME, labels, node.newest.time_s)
    metrics.put(NODE_MEMORY, labels, _scaled(parse_number(node.facts.get("host_memory_mib")), _MIB))
    for column, metric in NODE_METRICS:
        metrics.put(metric, labels, _reading(column, node, node.newest))


def _add_gpu(metrics: Metrics, node: NodeNow, gpu: GpuNow, place: _Labels) -> None:
    index, rank = gpu.index, gpu.values.get("rank")
    known = _GPU_FACT.fullmatch(node.facts.get(f"gpu {index}", ""))
    uuid = known["uuid"] if known and known["uuid"] != "-" else None
    labels = place | {"uuid": uuid, "rank": None if rank is None else f"{rank:.0f}"}
    name = known["name"] if known else None
    driver = node.facts.get("driver")
    metrics.put(GPU_INFO, labels | {"name": name, "driver": driver}, 1)
    signs = [gpu.values[name] for name in SIGNS_OF_LIFE if name in gpu.values]
    is_up = any(sign is not None for sign in signs) if signs else None
    metrics.put(GPU_UP, labels, is_up)
    memory_mib = parse_number(node.facts.get(f"memory_mib {index}"))
    metrics.put(GPU_MEMORY, labels, _scaled(memory_mib, _MIB))
    metrics.put(GPU_POWER_LIMIT, labels, parse_number(node.facts.get(f"power_limit_w {index}")))
    for column, metric in GPU_METRICS:
        metrics.put(metric, labels, _reading(column, node, gpu))
    bits = gpu.values.get("throt")
    for bit, reason in throttling.NAMES.items() if bits is not None else ():
        why = labels | {"reason": reason.replace(" ", "_")}
        metrics.put(GPU_THROTTLED, why, float(bool(int(bits or 0) & bit)))
    _add_events(metrics, node, index, place | {"uuid": uuid})


def _add_events(metrics: Metrics, node: NodeNow, index: int | None, place: _Labels) -> None:
    """Count what happened to a GPU, by kind and by XID."""
    mine = [event for event in node.events if event.gpu == index]
    counts = Counter((event.kind, event.details.get("xid")) for event in mine)
    for (kind, xid), num in counts.items():
        labels = place | {"event": kind, "xid": xid}
        metrics.put(GPU_EVENTS, labels, num)
        times_s = [e.time_s for e in mine if (e.kind, e.details.get("xid")) == (kind, xid)]
        known_s = [time_s for time_s in times_s if not math.isnan(time_s)]
        metrics.put(GPU_EVENT_TIME, labels, max(known_s, default=None))


def _reading(column: Column, node: NodeNow, gpu: GpuNow) -> float | None:
    if not (node.is_ours or column.means_in_dmon):
        return None
    found = next((gpu.values[name] for name in column.names if name in gpu.values), None)
    return _scaled(found, _SCALES.get(column.unit, 1))


def _scaled(value: float | None, scale: float) -> float | None:
    if value is None:
        return None
    return value / 100 if scale == _PCT else value * scale  # 0.29, and not 0.29000000000000004
