"""How readings are spread: mean, percentiles and peak, from how often each value occurs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_FEW = 8192
"""Whole numbers below this are counted in an array, others sorted."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Of `num` readings; a percentile is a value that occurred, the first to reach its share."""

    num: int
    mean: float
    p5: float
    p50: float
    p95: float
    peak: float


@dataclass(frozen=True, slots=True)
class Counts:
    """Values in rising order, and how often each occurred."""

    values: NDArray[np.float64]
    counts: NDArray[np.int64]

    def spread(self) -> Spread | None:
        """Sum up; None where there was no reading."""
        if not self.values.size:
            return None
        reached = np.cumsum(self.counts)
        num = int(reached[-1])
        p5, p50, p95 = self.values[np.searchsorted(reached, np.array((0.05, 0.5, 0.95)) * num)]
        mean = float(self.values @ self.counts) / num
        return Spread(num, mean, float(p5), float(p50), float(p95), float(self.values[-1]))


def count(readings: NDArray[np.floating]) -> Counts:
    """Count readings; a NaN is none."""
    told = readings[~np.isnan(readings)]
    if not told.size:
        return Counts(np.empty(0), np.empty(0, np.int64))
    if told.min() >= 0 and told.max() < _FEW:
        whole = told.astype(np.int32)
        if (whole == told).all():
            counts = np.bincount(whole)
            values = np.flatnonzero(counts)
            return Counts(values.astype(np.float64), counts[values])
    told = np.sort(told)
    first = np.flatnonzero(np.concatenate(([True], told[1:] != told[:-1])))
    return Counts(told[first].astype(np.float64), np.diff(np.append(first, told.size)))


def merge(parts: Sequence[Counts]) -> Counts:
    """Count what several have counted."""
    values, inverse = np.unique(np.concatenate([p.values for p in parts]), return_inverse=True)
    counts = np.bincount(inverse, np.concatenate([p.counts for p in parts]), values.size)
    return Counts(values, counts.astype(np.int64))
