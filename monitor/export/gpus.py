"""What the newest samples of GPUs and nodes come to as metrics, in base units."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from monitor.export.openmetrics import Metric
from monitor.logs import throttling

if TYPE_CHECKING:
    from collections.abc import Iterable

    from monitor.export.newest import GpuNow, NodeNow
    from monitor.export.openmetrics import Metrics

    _Labels = dict[str, str | None]

_PCT = 0.01
_MIB = 2**20
_MB = 1e6
_MHZ = 1e6


class _Column(NamedTuple):
    """Where a metric comes from: columns of the log, the first that is there, and their unit."""

    columns: tuple[str, ...]
    scale: float
    metric: Metric


def _gpu(columns: str, scale: float, name: str, text: str) -> _Column:
    return _Column(tuple(columns.split()), scale, Metric(f"ddp_gpu_{name}", text))


def _node(column: str, scale: float, name: str, text: str) -> _Column:
    return _Column((column,), scale, Metric(f"ddp_node_{name}", text))


GPU_COLUMNS = (
    _gpu("pwr", 1, "power_watts", "Power draw."),
    _gpu("gtemp", 1, "temperature_celsius", "Temperature of the GPU."),
    _gpu("mtemp", 1, "memory_temperature_celsius", "Temperature of the GPU's memory."),
    _gpu("sm", _PCT, "utilization_ratio", "Share of time in which a kernel ran."),
    _gpu("smavg", _PCT, "utilization_average_ratio", "Mean utilization since the last sample."),
    _gpu("smmax", _PCT, "utilization_peak_ratio", "Highest utilization since the last sample."),
    _gpu("mem", _PCT, "memory_utilization_ratio", "Share of time in which memory was in use."),
    _gpu("enc", _PCT, "encoder_utilization_ratio", "Utilization of the video encoder."),
    _gpu("dec", _PCT, "decoder_utilization_ratio", "Utilization of the video decoder."),
    _gpu("jpg", _PCT, "jpeg_utilization_ratio", "Utilization of the JPEG engine."),
    _gpu("ofa", _PCT, "optical_flow_utilization_ratio", "Utilization of the optical flow engine."),
    _gpu("smact smutil", _PCT, "sm_active_ratio", "Share of multiprocessors that were active."),
    _gpu("tensor mmaact", _PCT, "tensor_active_ratio", "Share of time that tensor cores worked."),
    _gpu("dram", _PCT, "dram_active_ratio", "Share of time in which memory moved data."),
    _gpu("fb", _MIB, "memory_used_bytes", "Memory in use."),
    _gpu("bar1", _MIB, "bar1_memory_used_bytes", "BAR1 memory in use."),
    _gpu("ccpm", _MIB, "protected_memory_used_bytes", "Protected memory in use."),
    _gpu("rxpci", _MB, "pcie_receive_bytes_per_second", "Traffic to the GPU over PCIe."),
    _gpu("txpci", _MB, "pcie_transmit_bytes_per_second", "Traffic from the GPU over PCIe."),
    _gpu("nvrx", _MB, "nvlink_receive_bytes_per_second", "Traffic to the GPU over NVLink."),
    _gpu("nvtx", _MB, "nvlink_transmit_bytes_per_second", "Traffic from the GPU over NVLink."),
    _gpu("mclk", _MHZ, "memory_clock_hertz", "Clock of the memory."),
    _gpu("pclk", _MHZ, "sm_clock_hertz", "Clock of the multiprocessors."),
    _gpu("energy", 1, "energy_joules_total", "Energy since the driver was loaded."),
    _gpu("sbecc", 1, "ecc_corrected_errors_total", "ECC errors that were corrected."),
    _gpu("dbecc", 1, "ecc_uncorrected_errors_total", "ECC errors that were not."),
    _gpu("remap", 1, "remapped_rows", "Rows of memory that were replaced by spare ones."),
    _gpu("pviol", _PCT, "power_throttled_ratio", "Share of time throttled for power."),
    _gpu("tviol", _PCT, "thermal_throttled_ratio", "Share of time throttled for heat."),
    _gpu("step", 1, "rank_step", "Step of the rank that trains on this GPU."),
    _gpu("rfb", _MIB, "rank_memory_used_bytes", "Memory that the rank's process holds."),
    _gpu("ofb", _MIB, "other_memory_used_bytes", "Memory held by processes of no rank."),
)
NODE_COLUMNS = (
    _node("cpu", _PCT, "cpu_utilization_ratio", "Share of all cores that worked."),
    _node("hmem", _MIB, "memory_used_bytes", "Memory of the host in use."),
    _node("shm", _PCT, "shm_used_ratio", "Share of /dev/shm in use."),
    _node("disk", _PCT, "disk_used_ratio", "Share of the disk in use that the log lies on."),
    _node("ibrx", _MB, "infiniband_receive_bytes_per_second", "Traffic in over InfiniBand."),
    _node("ibtx", _MB, "infiniband_transmit_bytes_per_second", "Traffic out over InfiniBand."),
)
_SIGNS_OF_LIFE = ("sm", "pwr", "gtemp", "fb")  # dmon has some others of a lost GPU, too
_OURS_ALONE = frozenset({"tviol"})  # dmon has a column of this name in another unit

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

METRICS = (
    *(column.metric for column in (*GPU_COLUMNS, *NODE_COLUMNS)),
    *(GPU_INFO, GPU_UP, GPU_MEMORY, GPU_POWER_LIMIT, GPU_THROTTLED, GPU_EVENTS, GPU_EVENT_TIME),
    *(NODE_SAMPLE_TIME, NODE_MEMORY),
)

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
    metrics.put(NODE_MEMORY, labels, _scaled(_number(node.facts.get("host_memory_mib")), _MIB))
    for column in NODE_COLUMNS:
        metrics.put(column.metric, labels, _reading(column, node, node.newest))


def _add_gpu(metrics: Metrics, node: NodeNow, gpu: GpuNow, place: _Labels) -> None:
    index, rank = gpu.index, gpu.values.get("rank")
    known = _GPU_FACT.fullmatch(node.facts.get(f"gpu {index}", ""))
    uuid = known["uuid"] if known and known["uuid"] != "-" else None
    labels = place | {"uuid": uuid, "rank": None if rank is None else f"{rank:.0f}"}
    name = known["name"] if known else None
    driver = node.facts.get("driver")
    metrics.put(GPU_INFO, labels | {"name": name, "driver": driver}, 1)
    is_up = any(gpu.values.get(name) is not None for name in _SIGNS_OF_LIFE)
    metrics.put(GPU_UP, labels, float(is_up))
    memory_mib = _number(node.facts.get(f"memory_mib {index}"))
    metrics.put(GPU_MEMORY, labels, _scaled(memory_mib, _MIB))
    metrics.put(GPU_POWER_LIMIT, labels, _number(node.facts.get(f"power_limit_w {index}")))
    for column in GPU_COLUMNS:
        metrics.put(column.metric, labels, _reading(column, node, gpu))
    bits = gpu.values.get("throt")
    for bit, reason in throttling.NAMES.items() if bits is not None else ():
        why = labels | {"reason": reason.replace(" ", "_")}
        metrics.put(GPU_THROTTLED, why, float(bool(int(bits or 0) & bit)))
    _add_events(metrics, node, index, place | {"uuid": uuid})


def _add_events(metrics: Metrics, node: NodeNow, index: int | None, place: _Labels) -> None:
    """Count what happened to a GPU, by kind and by XID."""
    mine = [mark for mark in node.marks if mark.gpu == index]
    counts = Counter((mark.kind, mark.details.get("xid")) for mark in mine)
    for (kind, xid), num in counts.items():
        labels = place | {"event": kind, "xid": xid}
        metrics.put(GPU_EVENTS, labels, num)
        times_s = [m.time_s for m in mine if (m.kind, m.details.get("xid")) == (kind, xid)]
        known_s = [time_s for time_s in times_s if not math.isnan(time_s)]
        metrics.put(GPU_EVENT_TIME, labels, max(known_s, default=None))


def _reading(column: _Column, node: NodeNow, gpu: GpuNow) -> float | None:
    names = (n for n in column.columns if node.is_ours or n not in _OURS_ALONE)
    found = next((gpu.values[name] for name in names if name in gpu.values), None)
    return _scaled(found, column.scale)


def _scaled(value: float | None, scale: float) -> float | None:
    if value is None:
        return None
    return value / 100 if scale == _PCT else value * scale  # 0.29, and not 0.29000000000000004


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "nan")
    except ValueError:
        return None
    return value if math.isfinite(value) else None
