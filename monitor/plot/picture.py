"""What a picture shows, before anything is drawn: panels over one time axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from monitor.analysis import axis as plot_axis
from monitor.analysis.events import events_of
from monitor.errors import UserError, emit
from monitor.logs.series import by_unit
from monitor.plot import curves as plot_curves
from monitor.plot import grid as plot_grid
from monitor.plot import metrics as plot_metrics
from monitor.runs.history import times
from rundir.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from monitor.analysis.axis import Axis
    from monitor.analysis.events import Event
    from monitor.logs.series import GpuSeries, Run
    from monitor.plot.curves import Curve
    from monitor.plot.grid import Rows
    from monitor.plot.metrics import Metric


@dataclass(frozen=True)
class Panel:
    """A heat map: a metric of all rows over time."""

    metric: Metric
    rows: Rows
    values: NDArray[np.float32]
    """(rows, bins) in the metric's unit; NaN: no reading."""
    low: float
    high: float


@dataclass(frozen=True)
class Picture:
    """All that is drawn."""

    name: str
    axis: Axis
    panels: tuple[Panel, ...]
    curves: tuple[Curve, ...]
    events: tuple[Event, ...]
    num_left_out: int
    """GPUs whose rows cannot be placed in time."""


@dataclass(frozen=True)
class Placed:
    """What of a run can be placed in time, and the axis that spans it."""

    gpus: tuple[GpuSeries, ...]
    axis: Axis
    events: tuple[Event, ...]
    num_left_out: int


def placed(run: Run, max_bins: int) -> Placed:
    """Choose the time axis; a GPU that got another index is one, with its last index.

    Raises:
        UserError: there is nothing with a time.

    """
    events = events_of(run)
    moments = [event.time_s for event in events] + times(run.metrics)
    gpus = by_unit(run.gpus)
    kept = plot_axis.usable(gpus, moments)
    axis = plot_axis.choose(kept, moments, max_bins)
    events = events if axis.dated else ()
    return Placed(kept, axis, events, len(gpus) - len(kept))


def report_skipped(num_gpus: int) -> None:
    """Say what is missing, if anything is."""
    if num_gpus:
        emit(f"left out {counted(num_gpus, 'GPU')} whose logs have no time or no date")


def picture(
    run: Run, metrics: Sequence[Metric] | None, *, max_rows: int, max_bins: int, title: str | None
) -> Picture:
    """Put readings into panels."""
    where = placed(run, max_bins)
    shown = plot_metrics.usual(where.gpus) if metrics is None else metrics
    available = [metric for metric in shown if plot_metrics.has_readings(metric, where.gpus)]
    drawn = tuple(plot_curves.curves(run.metrics).values())
    if metrics and not available:
        raise UserError(
            "--show must name something that the logs hold",
            f"no reading of {', '.join(metric.name for metric in metrics)}",
            "leave --show out",
        )
    if not available and not drawn and not where.events:
        raise nothing_to_show()
    panels = tuple(_panel(where, metric, max_rows) for metric in available)
    name = named(run, where.gpus) if title is None else title
    return Picture(name, where.axis, panels, drawn, where.events, where.num_left_out)


def nothing_to_show() -> UserError:
    """Return the error where logs have nothing that could be drawn."""
    return UserError(
        "logs must hold readings of utilisation, power, memory, temperature or throttling",
        "none",
        "`python -m monitor report` shows what they hold",
    )


def _panel(where: Placed, metric: Metric, max_rows: int) -> Panel:
    order = plot_grid.keys(where.gpus, of_host=metric.of_host)
    rows = plot_grid.fold(order, max_rows)
    grid = plot_grid.values(where.gpus, metric, where.axis, order)
    low, high = scale(metric, grid, where.gpus)
    return Panel(metric, rows, plot_grid.folded(grid, rows, worst=metric.worst), low, high)


def scale(
    metric: Metric, grid: NDArray[np.float32], gpus: Sequence[GpuSeries]
) -> tuple[float, float]:
    """Choose where a metric's colours begin and end."""
    if metric.top is not None:
        return 0.0, metric.top
    known = grid[np.isfinite(grid)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    if metric.name == "temp":
        return 10 * np.floor(low / 10), max(10 * np.ceil(high / 10), 10 * np.floor(low / 10) + 10)
    fact = {"power": "power_limit_w", "memory": "memory_mib"}.get(metric.name)
    limits = [series.number(fact) for series in gpus] if fact else []
    whole = [limit / metric.scale for limit in limits if limit is not None]
    return 0.0, max([high, *whole]) or 1.0


def named(run: Run, gpus: Sequence[GpuSeries]) -> str:
    """Name what is shown by its run, with its size."""
    num_nodes = len({series.host for series in gpus})
    num_gpus = len(plot_grid.keys(gpus, of_host=False))
    parts = []
    if num_nodes:
        parts.append(counted(num_nodes, "node"))
        parts.append(counted(num_gpus, "GPU") if num_gpus else "no GPU")
    name = run.name or "GPU log"
    return f"{name}: {', '.join(parts)}" if parts else name
