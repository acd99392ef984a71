"""Training loss and throughput over time, thinned to what a picture can show."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from monitor.runs.history import seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

MAX_POINTS = 2000
_MOST = 1e100
"""Matplotlib's scales overflow not far above; a loss that is larger counts as infinite."""


@dataclass(frozen=True)
class Curve:
    """One quantity of the training; a NaN breaks the line, as between two starts."""

    name: str
    unit: str
    time_s: NDArray[np.float64]
    values: NDArray[np.float64]
    step: NDArray[np.float64]
    is_line: bool = True
    """Else single points, such as validations."""


_CURVES: tuple[tuple[str, str, str, bool], ...] = (
    ("loss", "training loss", "", True),
    ("test_loss", "validation loss", "", False),
    ("samples_per_s", "throughput", "samples/s", True),
    ("tokens_per_s", "throughput", "tokens/s", True),
)


def curves(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Curve]:
    """Find the curves that there are, by their name in `metrics.jsonl`."""
    found = {}
    for key, name, unit, is_line in _CURVES:
        lines = [line for line in metrics if key in line and seconds(line.get("time")) is not None]
        if not any(_number(line[key]) == _number(line[key]) for line in lines):
            continue
        time_s, values, step = _points(lines, key, is_line=is_line)
        found[key] = Curve(name, unit, time_s, values, step, is_line)
    if "tokens_per_s" in found:  # the same curve by a constant factor
        found.pop("samples_per_s", None)
    return found


def _points(
    lines: Sequence[Mapping[str, Any]], key: str, *, is_line: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    time_s = np.array([seconds(line["time"]) for line in lines], np.float64)
    columns = [np.array([_number(line.get(name)) for line in lines]) for name in (key, "step")]
    if is_line:
        attempts = np.array([_number(line.get("attempt", 1)) for line in lines])
        breaks = np.flatnonzero(np.diff(attempts) != 0) + 1
        time_s = np.insert(time_s, breaks, time_s[breaks])
        columns = [np.insert(column, breaks, np.nan) for column in columns]
    kept = thinned(columns[0], MAX_POINTS)
    return time_s[kept], columns[0][kept], columns[1][kept]


def thinned(values: NDArray[np.float64], max_points: int) -> NDArray[np.intp]:
    """Choose points: of every stretch the lowest and the highest, and each break."""
    if len(values) <= max_points:
        return np.arange(len(values))
    length = -(-2 * len(values) // max_points)
    padded = np.append(values, np.full(-len(values) % length, np.nan)).reshape(-1, length)
    begins = np.arange(len(padded)) * length
    low = begins + np.argmin(np.where(np.isnan(padded), np.inf, padded), axis=1)
    high = begins + np.argmax(np.where(np.isnan(padded), -np.inf, padded), axis=1)
    breaks = np.flatnonzero(np.isnan(values))
    return np.unique(np.concatenate([low, high, breaks, [len(values) - 1]]))


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return math.copysign(math.inf, value) if abs(value) > _MOST else float(value)
