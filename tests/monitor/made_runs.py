"""Made-up runs, for their readers."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from monitor.logs.log_events import LogEvent, Place
from monitor.logs.series import GpuSeries, Run

BEGIN_S = 1_790_000_000.0
STEP_S = 15.0
NUM_SAMPLES = 240
"""An hour."""

FACTS = {"host": "n1", "host_memory_mib": "1000000"}


def gpu(  # noqa: PLR0913 - each has its default
    index: int | None = 0,
    host: str = "n1",
    job: str | None = "7",
    *,
    num_samples: int = NUM_SAMPLES,
    time_s: Any = None,
    facts: Mapping[str, str] | None = None,
    **columns: Any,
) -> GpuSeries:
    """A GPU at work for an hour; a column is one number, or one a sample."""
    clock_s = BEGIN_S + STEP_S * np.arange(num_samples) if time_s is None else np.asarray(time_s)
    own = {
        f"gpu {index}": "GPU-1 NVIDIA H100",
        f"memory_mib {index}": "80000",
        f"power_limit_w {index}": "700",
    }
    columns = {"sm": 95, "pwr": 600, "gtemp": 60, "fb": 60_000} | columns
    values = {
        name: np.broadcast_to(np.asarray(column, np.float32), clock_s.shape)
        for name, column in columns.items()
    }
    return GpuSeries(host, index, job, clock_s, values, {**FACTS, **own, **(facts or {})})


def run(*gpus: GpuSeries, **more: Any) -> Run:
    """A run of some GPUs."""
    return Run(name="made", gpus=gpus, **more)


def mark(kind: str, index: int = 0, *, after_s: float = 60, **details: str) -> LogEvent:
    """What happened on the first node."""
    return LogEvent(BEGIN_S + after_s, kind, index, details, Place("7", "n1"))


def at(places: Any, value: float, otherwise: float) -> np.ndarray:
    """A column that is `value` in some samples, such as a slice."""
    column = np.full(NUM_SAMPLES, otherwise, np.float32)
    column[places] = value
    return column


def first(num: int, *, after: int = 100) -> slice:
    """So many samples, well after the start-up."""
    return slice(after, after + num)
