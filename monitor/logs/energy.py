"""What a GPU drew: by its counter, and where that does not tell, by power over time."""

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
    """Joules, what tells them, and how long of the time under watch nothing does."""

    joules: float | None
    source: str | None
    """`counter`, `power`, or `counter+power`."""
    unseen_s: float | None


def used(
    counter_j: _Column, power_w: _Column, steps_s: NDArray[np.float64], start: NDArray[np.int32]
) -> Used:
    """Take the counter's growth, and where it does not tell, power over time by trapezoids.

    Both span readings that are missing; the counter also times without a sample, unless the job
    began anew meanwhile.

    Args:
        counter_j: of each sample; NaN where there is no reading.
        power_w: as `counter_j`.
        steps_s: the time that each sample speaks for; NaN after a gap.
        start: another number after each start of the job.

    """
    known_s = np.nan_to_num(steps_s)
    counted_j, is_counted = _counted(counter_j, steps_s, start)
    powered_j, powered_s = _powered(power_w, steps_s, is_counted)
    told = {"counter": bool(is_counted.any()), "power": powered_s > 0}
    source = "+".join(name for name, is_told in told.items() if is_told)
    if not source:
        return Used(None, None, None)
    unseen_s = float(known_s.sum()) - float(known_s[is_counted].sum()) - powered_s
    return Used(counted_j + powered_j, source, max(0.0, unseen_s))


def _counted(
    counter_j: _Column, steps_s: NDArray[np.float64], start: NDArray[np.int32]
) -> tuple[float, NDArray[np.bool_]]:
    """Sum the counter's growth, and tell which steps it speaks of."""
    told = np.flatnonzero(~np.isnan(counter_j))
    grown_j = np.diff(counter_j[told].astype(np.float64))
    # one that falls was set back by a reload of the driver
    grows = (grown_j >= 0) & (np.diff(start[told]) == 0) & (not np.isnan(steps_s).all())
    edges = np.zeros(len(steps_s) + 1, np.int8)
    edges[told[:-1][grows] + 1] += 1
    edges[told[1:][grows] + 1] -= 1
    return float(grown_j[grows].sum()), np.cumsum(edges)[:-1] > 0


def _powered(
    power_w: _Column, steps_s: NDArray[np.float64], is_counted: NDArray[np.bool_]
) -> tuple[float, float]:
    """Integrate power where the counter does not tell: joules, and over how many seconds."""
    told = np.flatnonzero(~np.isnan(power_w))
    passed_s = np.diff(np.cumsum(np.nan_to_num(steps_s))[told])
    barred = np.diff(np.cumsum(np.isnan(steps_s) | is_counted)[told])
    is_whole = (barred == 0) & (np.diff(told) <= constants.GAP_INTERVALS)
    both_w = power_w[told].astype(np.float64)
    joules = (both_w[1:] + both_w[:-1]) / 2 * passed_s
    return float(joules[is_whole].sum()), float(passed_s[is_whole].sum())
