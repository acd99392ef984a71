"""What a GPU drew: by its counter, and where that has no reading, by power over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from monitor.logs import constants

if TYPE_CHECKING:
    from numpy.typing import NDArray

    _Column = NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class Used:
    """Joules, their source, and how much of the time under watch has none."""

    joules: float | None
    source: str | None
    """`counter`, `power`, or `counter+power`."""
    unseen_s: float


def used(
    counter_j: _Column, power_w: _Column, steps_s: NDArray[np.float64], start: NDArray[np.int32]
) -> Used:
    """Take the counter's growth, and where it has no reading, power over time by trapezoids.

    Both span readings that are missing; the counter also times without a sample, unless the job
    began anew meanwhile.

    Args:
        counter_j: of each sample; NaN where there is no reading.
        power_w: as `counter_j`.
        steps_s: the time that each sample stands for; NaN after a gap.
        start: another number after each start of the job.

    """
    known_s = np.nan_to_num(steps_s)
    counted_j, is_counted = _counted(counter_j, steps_s, start)
    powered_j, powered_s = _powered(power_w, steps_s, is_counted)
    sources = {"counter": bool(is_counted.any()), "power": powered_s > 0}
    source = "+".join(name for name, is_used in sources.items() if is_used)
    if not source:
        return Used(None, None, float(known_s.sum()))
    unseen_s = float(known_s.sum()) - float(known_s[is_counted].sum()) - powered_s
    return Used(counted_j + powered_j, source, max(0.0, unseen_s))


def _counted(
    counter_j: _Column, steps_s: NDArray[np.float64], start: NDArray[np.int32]
) -> tuple[float, NDArray[np.bool_]]:
    """Sum the counter's growth, and mark the steps that it covers."""
    known = np.flatnonzero(~np.isnan(counter_j))
    grown_j = np.diff(counter_j[known].astype(np.float64))
    # one that falls was set back by a reload of the driver
    grows = (grown_j >= 0) & (np.diff(start[known]) == 0) & (not np.isnan(steps_s).all())
    edges = np.zeros(len(steps_s) + 1, np.int8)
    edges[known[:-1][grows] + 1] += 1
    edges[known[1:][grows] + 1] -= 1
    return float(grown_j[grows].sum()), np.cumsum(edges)[:-1] > 0


def _powered(
    power_w: _Column, steps_s: NDArray[np.float64], is_counted: NDArray[np.bool_]
) -> tuple[float, float]:
    """Integrate power where the counter has no reading: joules, and over how many seconds."""
    known = np.flatnonzero(~np.isnan(power_w))
    passed_s = np.diff(np.cumsum(np.nan_to_num(steps_s))[known])
    barred = np.diff(np.cumsum(np.isnan(steps_s) | is_counted)[known])
    is_whole = (barred == 0) & (np.diff(known) <= constants.GAP_INTERVALS)
    both_w = power_w[known].astype(np.float64)
    joules = (both_w[1:] + both_w[:-1]) / 2 * passed_s
    return float(joules[is_whole].sum()), float(passed_s[is_whole].sum())
