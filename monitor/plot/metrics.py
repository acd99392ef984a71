"""What of a GPU or a host can be drawn over time, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from monitor.errors import UserError
from monitor.logs import throttling
from monitor.logs.columns import COLUMNS
from monitor.words import MIB_PER_GIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from monitor.logs.columns import Column, Panel
    from monitor.logs.series import GpuSeries


THROTTLE_WORDS = ("none", "power", "heat")
"""What the numbers of the throttling mean."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One quantity: where it stands in a log, and how several values become one."""

    name: str
    """As `--show` knows it."""
    columns: tuple[str, ...]
    """Of a sample the first that has a reading; throttling is read from all of them."""
    title: str
    unit: str
    worst: bool = False
    """Several values become their highest, not their mean: a peak must not be smoothed away."""
    of_host: bool = False
    scale: float = 1
    """What a log's number is divided by."""
    top: float | None = None
    """Where its scale ends, if not at the highest value."""

    @property
    def heading(self) -> str:
        """Title and unit."""
        return f"{self.title}, {self.unit}" if self.unit else self.title

    @property
    def is_throttling(self) -> bool:
        """Whether its values are the numbers of THROTTLE_WORDS."""
        return self.name == "throttle"


_UNITS = {"MB": ("GiB", MIB_PER_GIB), "C": ("°C", 1), "bits": ("", 1)}


def _metric(column: Column, panel: Panel) -> Metric:
    unit, scale = _UNITS.get(column.unit, (column.unit, 1))
    names = panel.columns or (column.name,)
    return Metric(
        panel.name, names, panel.title, unit, panel.worst, column.of_host, scale, panel.top
    )


_PANELS = [(column, column.panel) for column in COLUMNS if column.panel is not None]
METRICS = tuple(_metric(*pair) for pair in sorted(_PANELS, key=lambda pair: pair[1].order))
"""In the order in which they are drawn."""

WANTED = frozenset(column for metric in METRICS for column in metric.columns)
"""The columns of a log that are read."""


def named(show: str) -> tuple[Metric, ...]:
    """Find what a user asks for, such as `util,power`, in the order given.

    Raises:
        UserError: a name is unknown.

    """
    known = {metric.name: metric for metric in METRICS}
    names = [name.strip() for name in show.split(",")]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UserError(
            f"--show must be of {', '.join(known)}, with commas between",
            f"{unknown[0]!r}",
            "write for example --show util,memory",
        )
    return tuple(known[name] for name in dict.fromkeys(names))


def usual(gpus: Sequence[GpuSeries]) -> tuple[Metric, ...]:
    """Choose what to draw: all of GPUs that has readings, else what there is of hosts."""
    found = [metric for metric in METRICS if has_readings(metric, gpus)]
    of_gpus = tuple(metric for metric in found if not metric.of_host)
    return of_gpus or tuple(found)


def has_readings(metric: Metric, gpus: Sequence[GpuSeries]) -> bool:
    """Return whether any of them has it."""
    return any(
        series.column(column) is not None
        for series in gpus
        if metric.of_host or series.gpu is not None
        for column in metric.columns
    )


def reading(series: GpuSeries, metric: Metric) -> NDArray[np.float32]:
    """Give (samples,) values in the metric's unit; NaN: no reading."""
    if metric.is_throttling:
        return _throttling(series)
    columns = series.columns(*metric.columns)
    if not columns:
        return np.full(series.num_samples, np.nan, np.float32)
    found, *others = columns
    for other in others:
        found = np.where(np.isnan(found), other, found)
    return (found / metric.scale).astype(np.float32)


def _throttling(series: GpuSeries) -> NDArray[np.float32]:
    """Return 0 for full clocks, 1 for power and 2 for heat; the worse where there are both."""
    bits = series.column("throt")
    if bits is not None:
        whole = np.nan_to_num(bits).astype(np.int64)
        power = whole & (throttling.POWER_CAP | throttling.BRAKE) > 0
        heat = whole & throttling.HEAT > 0
        return _worse(power, heat, np.isnan(bits))
    none = np.full(series.num_samples, np.nan, np.float32)
    power_pct, heat_pct = (series.values.get(name, none) for name in ("pviol", "tviol"))
    absent = np.isnan(power_pct) & np.isnan(heat_pct)
    return _worse(power_pct > 0, heat_pct > 0, absent)


def _worse(
    power: NDArray[np.bool_], heat: NDArray[np.bool_], absent: NDArray[np.bool_]
) -> NDArray[np.float32]:
    return np.where(absent, np.nan, np.where(heat, 2, power)).astype(np.float32)
