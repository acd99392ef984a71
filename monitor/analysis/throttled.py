"""In which samples heat, hardware or the power limit held a GPU's clocks down."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from monitor.analysis import readings
from monitor.logs import throttling

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from monitor.analysis.thresholds import Thresholds
    from monitor.logs.series import GpuSeries


def by_fault(series: GpuSeries, at: Thresholds) -> NDArray[np.bool_]:
    """Return the samples in which heat or hardware held the clocks down: they are findings."""
    found = np.zeros(series.num_samples, np.bool_)
    for _, where in (hot(series, at), braked(series, at)):
        found |= False if where is None else where
    return found


def is_free(series: GpuSeries) -> NDArray[np.bool_] | None:
    """Return the samples in which neither heat nor power held the clocks down; None: unknown."""
    reasons = series.column("throt")
    if reasons is None:
        return None
    held = _bits(reasons, throttling.POWER_CAP | throttling.FAULT)
    found: NDArray[np.bool_] = ~np.isnan(reasons) & ~held
    return found


def hot(series: GpuSeries, at: Thresholds) -> tuple[float, NDArray[np.bool_] | None]:
    """Give the share of its busy time, in %, and the samples: None where that is no finding."""
    pct, where = share(series, throttling.HEAT, "tviol", at)
    return pct, where if readings.reaches(pct, at.thermal_pct) else None


def share(
    series: GpuSeries, bits: int, violation: str, at: Thresholds
) -> tuple[float, NDArray[np.bool_] | None]:
    """Give the share of its busy time, in %, and the samples: by time throttled, else by bits."""
    busy = readings.busy(series, at)
    violated = series.column(violation)
    if violated is not None and (violated > 0).any():  # one that never moves measures nothing
        if "interval_s" not in series.facts and violation == "tviol":
            violated = violated * 100  # dmon has a flag, and we %
        where = busy & (violated > 0)
        known = violated[busy & ~np.isnan(violated)]
        return (float(np.minimum(known, 100).mean()) if known.size else 0.0), where
    return _by_bits(series, bits, busy)


def braked(series: GpuSeries, at: Thresholds) -> tuple[float, NDArray[np.bool_] | None]:
    """Give the same of slowdowns by hardware that are not for heat."""
    reasons = series.column("throt")
    if reasons is None:
        return 0.0, None
    hot = _bits(reasons, throttling.HEAT)
    pct, where = _by_bits(series, throttling.BRAKE, readings.busy(series, at) & ~hot)
    return pct, where if readings.reaches(pct, at.brake_pct) else None


def _by_bits(
    series: GpuSeries, bits: int, among: NDArray[np.bool_]
) -> tuple[float, NDArray[np.bool_] | None]:
    reasons = series.column("throt")
    if reasons is None:
        return 0.0, None
    where = among & _bits(reasons, bits)
    return readings.share_pct(where, among & ~np.isnan(reasons)), where


def _bits(reasons: NDArray[np.floating], bits: int) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = np.where(np.isnan(reasons), 0, reasons).astype(np.int32) & bits != 0
    return found
