"""The page's table: a row a GPU (or a node without one), its numbers over the whole run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from monitor.logs.constants import BUSY_PCT
from monitor.plot.metrics import reading

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from monitor.logs.series import GpuSeries
    from monitor.plot.grid import Key
    from monitor.plot.metrics import Metric


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
        values = _joined(reading(part, metric) for part in parts)
        is_silent &= np.isnan(values)
        cells.append(_of_metric(metric, values))
        if metric.name == "util":
            cells.append(_busy_pct(parts))
    return [*cells, 100 * float(is_silent.mean()) if is_silent.size else None]


def _joined(parts: Iterable[NDArray[np.floating] | None]) -> NDArray[np.floating]:
    return np.concatenate([np.empty(0, np.float32), *(p for p in parts if p is not None)])


def _busy_pct(parts: Sequence[GpuSeries]) -> float | None:
    active = _joined(part.activity for part in parts)
    active = active[~np.isnan(active)]
    return 100 * float((active > BUSY_PCT).mean()) if active.size else None


def _of_metric(metric: Metric, values: NDArray[np.floating]) -> float | None:
    known = values[~np.isnan(values)]
    if not known.size:
        return None
    if metric.is_throttling:
        return 100 * float((known > 0).mean())
    return float(known.max() if metric.worst else known.mean(dtype=np.float64))
