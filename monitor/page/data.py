"""What a page shows, packed: readings in bins as small numbers, everything else as JSON."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from monitor.analysis.engine import evaluate
from monitor.analysis.events import KINDS
from monitor.analysis.findings import summaries
from monitor.errors import UserError
from monitor.page import table
from monitor.plot import curves as plot_curves
from monitor.plot import grid as plot_grid
from monitor.plot import metrics as plot_metrics
from monitor.plot.picture import named, nothing_to_show, placed, scale

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from monitor.analysis.findings import Summary
    from monitor.logs.series import Run
    from monitor.plot.curves import Curve
    from monitor.plot.metrics import Metric
    from monitor.plot.picture import Placed

MAX_CELLS = 5_000_000
"""Of all metrics together: with a byte each the page stays below 10 MB."""

_FEW_CELLS = 500_000
"""Up to here a cell has two bytes, and its number is as exact as the log's."""

_NUM_METRICS = 5
"""Of GPUs: so many are there at most."""

_BINS = (60, 1440)
_MAX_ROWS = 20_000
_MAX_EVENTS = 5000
_MAX_FINDINGS = 100


def payload(run: Run, title: str | None) -> dict[str, Any]:
    """Pack a run for the page's script, which unpacks it in `page/data.js`.

    Raises:
        UserError: there is nothing to show.

    """
    num_gpus = len(plot_grid.keys(run.gpus, of_host=False))
    least, most = _BINS
    num_bins = MAX_CELLS // max(1, num_gpus * _NUM_METRICS)
    where = placed(run, max(least, min(most, num_bins)))
    metrics = plot_metrics.usual(where.gpus)
    order = plot_grid.keys(where.gpus, of_host=any(metric.of_host for metric in metrics))
    if len(order) > _MAX_ROWS:
        raise UserError(
            f"a page must have {_MAX_ROWS} GPUs at most",
            len(order),
            "name the logs of some nodes only",
        )
    curves = plot_curves.curves(run.metrics)
    if not metrics and not curves and not where.events:
        raise nothing_to_show()
    return {
        "name": named(run, where.gpus) if title is None else title,
        "axis": _axis(where),
        "rows": [[host, None if gpu < 0 else gpu] for host, gpu in order],
        "metrics": [_metric(where, metric, order) for metric in metrics],
        "curves": [_curve(curve, where) for curve in curves.values()],
        "kinds": KINDS,
        "events": [
            [round(event.time_s - where.axis.begin_s, 3), event.kind, event.text]
            for event in where.events[:_MAX_EVENTS]
        ],
        "columns": table.columns(metrics),
        "table": [
            [None if number is None else round(number, 2) for number in row]
            for row in table.numbers(where.gpus, metrics, order)
        ],
        "left_out": where.num_left_out,
    }


def _axis(where: Placed) -> dict[str, Any]:
    axis = where.axis
    return {
        "begin": axis.begin_s,
        "bin": axis.bin_s,
        "bins": axis.num_bins,
        "offset": axis.offset.total_seconds() if axis.offset else 0,
        "zone": axis.zone,
        "dated": axis.dated,
    }


def _metric(where: Placed, metric: Metric, order: Sequence[plot_grid.Key]) -> Mapping[str, Any]:
    grid = plot_grid.values(where.gpus, metric, where.axis, order)
    low, high = scale(metric, grid, where.gpus)
    is_wide = grid.size <= _FEW_CELLS
    data, step = packed(grid, low, high, np.uint16 if is_wide else np.uint8)
    return {
        "name": metric.name,
        "title": metric.title,
        "unit": metric.unit,
        "worst": metric.worst,
        "words": plot_metrics.THROTTLE_WORDS if metric.is_throttling else None,
        "low": low,
        "high": high,
        "step": step,
        "wide": is_wide,
        "data": data,
    }


def packed(
    grid: NDArray[np.float32], low: float, high: float, kind: type[np.uint8 | np.uint16]
) -> tuple[str, float]:
    """Write (rows, bins) as base64 of levels above `low`, and the step between two levels.

    The greatest level of all stands for no reading. Whole numbers come back as they were where the
    scale is no longer than the levels.
    """
    absent = np.iinfo(kind).max
    step = (high - low) / (absent - 1)
    levels = np.clip(np.rint((grid - low) / step), 0, absent - 1)
    cells = np.where(np.isnan(levels), absent, levels).astype(np.dtype(kind).newbyteorder("<"))
    return base64.b64encode(cells.tobytes()).decode(), step


def _curve(curve: Curve, where: Placed) -> dict[str, Any]:
    return {
        "name": curve.name,
        "unit": curve.unit,
        "line": curve.is_line,
        "time": np.round(curve.time_s - where.axis.begin_s, 1).tolist(),
        "value": _nullable(curve.values),
        "step": _nullable(curve.step, digits=16),
    }


def _nullable(values: NDArray[np.float64], digits: int = 6) -> list[float | None]:
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in values]


def findings(run: Run, axis: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what is wrong with a run, worst first, for `page/main.js`, by the time of its data."""
    run = replace(run, gpus=tuple(replace(one, shift_s=0) for one in run.gpus))
    found = summaries(run, evaluate(run))[:_MAX_FINDINGS]
    return [
        {
            "rule": one.rule,
            "severity": one.severity,
            "where": one.where,
            "evidence": one.whole_evidence,
            "suggestion": one.suggestion,
            "time": _time(one, axis),
        }
        for one in found
    ]


def _time(one: Summary, axis: dict[str, Any]) -> list[float] | None:
    """Return when it began and ended, in seconds after the axis begins; None if not on it."""
    if one.span_s is None:
        return None
    begin_s, end_s = (round(time_s - axis["begin"], 3) for time_s in one.span_s)
    is_on_it = -axis["bin"] <= begin_s and end_s <= axis["bin"] * (axis["bins"] + 1)
    return [begin_s, end_s] if is_on_it else None
