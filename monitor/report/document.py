"""The report for programs: the numbers of the tables, and more, as one JSON document."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from monitor.logs import constants, stats
from monitor.logs.sample import total
from monitor.report import words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitor.logs.aggregates import File
    from monitor.logs.stats import Gpu, Idle, Job, Use

RULES = {
    "busy": f"share of samples with sm or smavg above {constants.BUSY_PCT} % (smact without both)",
    "idle": "time under watch of samples that are not busy; of several GPUs the sum",
    "hours": "time under watch; of several GPUs the sum, as gpu_hours always is",
    "energy": "the GPU's own counter where it has a reading, elsewhere power over time (~)",
    "gaps": f"gaps above {constants.GAP_INTERVALS} usual intervals add neither time nor energy",
    "percentiles": "values that occurred: the first that reaches its share of the samples",
    "times": "UTC where the log states its offset, else local",
}


def document(jobs: Sequence[Job], files: Sequence[File], co2_g_per_kwh: float | None) -> Any:  # noqa: ANN401 - JSON
    """Make the document; lists in the order of the tables, worst first."""
    return {
        "jobs": [
            {
                "job": job.name,
                "headline": words.headline(job),
                "num_nodes": len(job.nodes),
                "num_gpus": len(job.gpus),
                "gpu_hours": _gpu_hours(job.gpus),
                **_use(job.use, co2_g_per_kwh),
            }
            for job in jobs
        ],
        "nodes": [
            {
                "job": job.name,
                "host": node.place.host,
                "num_gpus": len(node.gpus),
                "gpu_hours": _gpu_hours(node.gpus),
                **_use(node.use, co2_g_per_kwh),
            }
            for job in jobs
            for node in stats.worst_first(job.nodes)
        ],
        "gpus": [
            _gpu(job, gpu, co2_g_per_kwh) for job in jobs for gpu in stats.worst_first(job.gpus)
        ],
        "files": [asdict(file) for file in files],
        "co2_g_per_kwh": co2_g_per_kwh,
        "rules": RULES,
    }


def _gpu_hours(gpus: Sequence[Gpu]) -> float | None:
    span_s = total(gpu.use.span_s for gpu in gpus)
    return None if span_s is None else span_s / 3600


def _gpu(job: Job, gpu: Gpu, co2_g_per_kwh: float | None) -> dict[str, Any]:
    return {
        "job": job.name,
        "host": gpu.place.host,
        "gpu": gpu.index,
        "uuid": gpu.uuid,
        "memory_mib": gpu.memory_mib,
        "longest_idle": _idle(gpu.longest_idle),
        **_use(gpu.use, co2_g_per_kwh),
    }


def _idle(idle: Idle | None) -> dict[str, Any] | None:
    if idle is None:
        return None
    return {"minutes": idle.duration_s / 60, "begin": _time(idle.begin_s)}


def _use(use: Use, co2_g_per_kwh: float | None) -> dict[str, Any]:
    kwh = None if use.energy_j is None else use.energy_j / words.J_PER_KWH
    return {
        "num_samples": use.num_samples,
        "num_silent": use.num_silent,
        "first": _time(use.first_s),
        "last": _time(use.last_s),
        "hours": None if use.span_s is None else use.span_s / 3600,
        "busy_pct": use.busy_pct,
        "idle_min": None if use.idle_s is None else use.idle_s / 60,
        "energy_kwh": kwh,
        "energy_from": use.energy_from,
        "energy_unseen_min": None if use.energy_unseen_s is None else use.energy_unseen_s / 60,
        "co2_g": None if kwh is None or co2_g_per_kwh is None else kwh * co2_g_per_kwh,
        **{name: spread and asdict(spread) for name, spread in use.spreads.items()},
    }


def _time(seconds: int | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat(sep=" ")
