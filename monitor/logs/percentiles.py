"""How readings are spread: mean, percentiles and peak, from how often each value occurs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


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
    values, counts = np.unique(readings, return_counts=True)
    num = values.size - int(np.isnan(values[-1:]).sum())  # a NaN is the last
    return Counts(values[:num].astype(np.float64), counts[:num])


def merge(parts: Sequence[Counts]) -> Counts:
    """Count what several have counted."""
    values = np.concatenate([part.values for part in parts])
    values, inverse = np.unique(values, return_inverse=True)
    counts = np.concatenate([part.counts for part in parts])
    return Counts(values, np.bincount(inverse, counts, values.size).astype(np.int64))
