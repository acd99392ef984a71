"""How readings are spread: mean, percentiles and peak, from how often each value occurs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_FEW = 8192
"""Whole numbers that lie within so many are counted in an array, others sorted."""


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
    known = readings
    if known.size and np.isnan(known.min()):  # a NaN is the least
        known = known[~np.isnan(known)]
    if not known.size:
        return Counts(np.empty(0), np.empty(0, np.int64))
    counted = _bins(known, None)
    if counted is not None:
        return counted
    known = np.sort(known)
    first = np.flatnonzero(np.concatenate(([True], known[1:] != known[:-1])))
    return Counts(known[first].astype(np.float64), np.diff(np.append(first, known.size)))


def merge(parts: Sequence[Counts]) -> Counts:
    """Count what several have counted."""
    full = [part for part in parts if part.values.size]
    if not full:
        return Counts(np.empty(0), np.empty(0, np.int64))
    values = np.concatenate([part.values for part in full])
    counts = np.concatenate([part.counts for part in full])
    counted = _bins(values, counts)
    if counted is not None:
        return counted
    values, inverse = np.unique(values, return_inverse=True)
    return Counts(values, np.bincount(inverse, counts, values.size).astype(np.int64))


def _bins(values: NDArray[np.floating], weights: NDArray[np.int64] | None) -> Counts | None:
    """Count whole numbers that lie close together; None for any others."""
    least = float(values.min())
    if not (least.is_integer() and values.max() - least < _FEW):
        return None
    above = (values - least).astype(np.intp)
    if not (above == values - least).all():
        return None
    counts = np.bincount(above, weights).astype(np.int64, copy=False)
    found = np.flatnonzero(counts)
    return Counts(found.astype(np.float64) + least, counts[found])
