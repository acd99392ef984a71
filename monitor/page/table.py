"""The page's table: a row a GPU (or a node without one), its numbers over the whole run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from monitor.logs.constants import BUSY_PCT
from monitor.plot.metrics import reading

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from monitor.logs.series import GpuSeries
    from monitor.plot.grid import Key
    from monitor.plot.metrics import Metric

_SHARES_PCT = 100


def columns(metrics: Sequence[Metric]) -> list[dict[str, str | int]]:
    """Describe the columns that `metrics` give: heading, unit, decimals."""
    found: list[dict[str, str | int]] = []
    for metric in metrics:
        found += [
            {"title": title, "unit": unit, "digits": digits}
            for title, unit, digits in _COLUMNS[metric.name]
        ]
    return [*found, {"title": "no reading", "unit": "%", "digits": 0}]


_COLUMNS = {
    "util": (("mean utilisation", "%", 0), ("busy", "%", 0)),
    "power": (("mean power", "W", 0),),
    "memory": (("memory peak", "GiB", 1),),
    "temp": (("hottest", "°C", 0),),
    "throttle": (("throttled", "%", 0),),
    "cpu": (("mean CPUs", "%", 0),),
    "hostmem": (("memory peak", "GiB", 1),),
}


def numbers(
    gpus: Sequence[GpuSeries], metrics: Sequence[Metric], order: Sequence[Key]
) -> list[list[float | None]]:
    """Give the numbers of each row in `order`; None: there is no reading."""
    mine: Mapping[Key, list[GpuSeries]] = {key: [] for key in order}
    for series in gpus:
        key = (series.host, -1 if series.gpu is None else series.gpu)
        for known in (key, (series.host, -1)):
            if known in mine:
                mine[known].append(series)
                break
    return [_numbers(mine[key], metrics) for key in order]


def _numbers(parts: Sequence[GpuSeries], metrics: Sequence[Metric]) -> list[float | None]:
    cells: list[float | None] = []
    is_silent = np.ones(sum(part.num_samples for part in parts), np.bool_)
    for metric in metrics:
        values = np.concatenate([np.empty(0, np.float32), *(reading(p, metric) for p in parts)])
        is_silent &= np.isnan(values)
        cells += _of_metric(metric, values)
    return [*cells, float(is_silent.mean()) * _SHARES_PCT if is_silent.size else None]


def _of_metric(metric: Metric, values: NDArray[np.float32]) -> list[float | None]:
    """Give the _COLUMNS of a metric."""
    known = values[~np.isnan(values)]
    if not known.size:
        return [None] * len(_COLUMNS[metric.name])
    if metric.name == "util":
        busy_pct = float((known > BUSY_PCT).mean()) * _SHARES_PCT
        return [float(known.mean(dtype=np.float64)), busy_pct]
    if metric.is_throttling:
        return [float((known > 0).mean()) * _SHARES_PCT]
    return [float(known.max() if metric.worst else known.mean(dtype=np.float64))]
