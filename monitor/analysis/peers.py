"""GPUs beside the others of their job.

Means, or peaks, of some minutes are compared, each with the middle one of all others. A difference
counts where it is large, larger than what the others differ among themselves, and lasts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from monitor.analysis import axis, readings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from monitor.analysis.readings import Stretch
    from monitor.analysis.thresholds import Thresholds
    from monitor.logs.series import GpuSeries, Run

    Measure = Callable[[GpuSeries], NDArray[np.floating] | None]

THRESHOLDS = ("min_peers", "peer_minutes", "peer_windows", "peer_spread")
"""What a comparison goes by, whatever is compared."""

_MIN_SAMPLES = 3  # in a window, before its mean means anything
_MIN_SHARE = 0.5  # of a window's time, before one checkpoint no longer decides its mean
_MAX_WINDOWS = 10_000
_SIGMA = 1.4826  # from the median of deviations to a standard deviation, if they are normal


@dataclass(frozen=True, slots=True)
class Grid:
    """Windows of time: when the first begins, how long each is, how many, and when all ends."""

    begin_s: float
    window_s: float
    num: int
    end_s: float


@dataclass(frozen=True)
class Peers:
    """What GPUs of one job and kind show, window by window."""

    series: Sequence[GpuSeries]
    values: NDArray[np.float64]
    """(GPUs, windows); NaN where there are too few readings."""
    others: NDArray[np.float64]
    """The middle one of all others there."""
    spread: NDArray[np.float64]
    """(windows,): what they differ among themselves."""
    grid: Grid

    def span(self, windows: Stretch) -> tuple[float | None, float | None]:
        """Give when windows begin and end."""
        if np.isnan(self.grid.begin_s):
            return None, None
        begin_s, window_s = self.grid.begin_s, self.grid.window_s
        end_s = min(self.grid.end_s, begin_s + windows.end * window_s)
        return begin_s + windows.begin * window_s, end_s


@dataclass(frozen=True, slots=True)
class Odd:
    """One that differs for long enough, its mean meanwhile and that of the others."""

    series: GpuSeries
    begin_s: float | None
    end_s: float | None
    own: float
    others: float
    num_peers: int
    is_node: bool = False
    """All GPUs of a node, of which `series` is one."""


def _compare(run: Run, at: Thresholds, measure: Measure, *, peak: bool = False) -> Iterator[Peers]:
    """Compare GPUs with their peers; groups that are too small have none."""
    for group in _groups(run):
        if len(group) <= max(1, at.min_peers):
            continue
        grid = _grid(group, 60 * max(0.1, at.peer_minutes))
        values = np.stack([_by_window(one, measure(one), grid, peak=peak) for one in group])
        others, spread = _others(values, int(max(1, at.min_peers)))
        yield Peers(group, values, others, spread, grid)


def _halves(run: Run, at: Thresholds, measure: Measure) -> Iterator[Peers]:
    """Compare the two nodes of a job where either may be the odd one: most jobs have no more.

    Of each only the GPU with the least difference counts, on the assumption that less
    is worse: the highest of the lower node, and the lowest of the other.
    """
    for group in _groups(run):
        nodes: dict[str, list[GpuSeries]] = {}
        for series in group:
            nodes.setdefault(series.host, []).append(series)
        if len(nodes) != 2:  # noqa: PLR2004 - halves
            continue
        grid = _grid(group, 60 * max(0.1, at.peer_minutes))
        by_node = [
            np.stack([_by_window(one, measure(one), grid, peak=False) for one in its])
            for its in nodes.values()
        ]
        highest = np.stack([values.max(axis=0) for values in by_node])
        lowest = np.stack([values.min(axis=0) for values in by_node])
        firsts = [its[0] for its in nodes.values()]
        yield Peers(firsts, highest, lowest[::-1], np.zeros(grid.num), grid)


def _groups(run: Run) -> list[list[GpuSeries]]:
    """Put GPUs of one job and kind together; without a job, those of one node."""
    groups: dict[tuple[str, str], list[GpuSeries]] = {}
    for series in readings.gpus(run):
        job = f"on {series.host}" if series.job is None else f"job {series.job}"
        kind = (series.fact("gpu") or "").partition(" ")[2]  # after the UUID
        groups.setdefault((job, kind), []).append(series)
    return list(groups.values())


def _grid(group: Sequence[GpuSeries], window_s: float) -> Grid:
    """Cut the job's time into windows; where there are no times all of it is one."""
    firsts = [float(series.time_s[0]) for series in group]
    if np.isnan(firsts).any():
        return Grid(np.nan, np.nan, 1, np.nan)
    begin_s = min(firsts)
    whole_s = max(float(np.nanmax(series.time_s)) for series in group) - begin_s
    window_s = max(window_s, whole_s / _MAX_WINDOWS)
    return Grid(begin_s, window_s, int(whole_s // window_s) + 1, begin_s + whole_s)


def _by_window(
    series: GpuSeries, values: NDArray[np.floating] | None, grid: Grid, *, peak: bool
) -> NDArray[np.float64]:
    """Give the mean, or the peak, of each window of one GPU; NaN where it read too little of it."""
    result = np.full(grid.num, np.nan)
    if values is None:
        return result
    known = ~np.isnan(values)
    window = np.zeros(len(values), np.int64)
    if grid.num > 1:
        known &= ~np.isnan(series.time_s)
        np.floor_divide(
            series.time_s - grid.begin_s, grid.window_s, out=window, where=known, casting="unsafe"
        )
    window, values = window[known], values[known]
    counts = np.bincount(window, minlength=grid.num)
    first = np.flatnonzero(np.diff(window, prepend=-1))
    if first.size:
        result[window[first]] = axis.together(values, first, worst=peak)
    result[counts < _MIN_SAMPLES] = np.nan
    if not np.isnan(grid.window_s):
        result[counts * series.interval_s < _MIN_SHARE * grid.window_s] = np.nan
    return result


def _others(
    values: NDArray[np.float64], min_peers: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Give the median of all others for each, and how far they spread, window by window."""
    num_known = (~np.isnan(values)).sum(axis=0)
    order = np.argsort(values, axis=0)  # NaN last
    ranks = np.argsort(order, axis=0)
    ordered = np.take_along_axis(values, order, axis=0)
    low, high = np.maximum(0, (num_known - 2) // 2), np.maximum(0, (num_known - 1) // 2)
    last = len(values) - 1

    def at(position: NDArray[np.int64]) -> NDArray[np.float64]:
        without = np.minimum(position + (position >= ranks), last)
        found: NDArray[np.float64] = np.take_along_axis(ordered, without, axis=0)
        return found

    others = (at(low) + at(high)) / 2
    others[:, num_known <= min_peers] = np.nan
    half = num_known[None] // 2
    middle = np.take_along_axis(ordered, half, axis=0)
    deviations = np.sort(np.abs(values - middle), axis=0)
    return others, _SIGMA * np.take_along_axis(deviations, half, axis=0)[0]


def _lasting(
    differs: NDArray[np.bool_], known: NDArray[np.bool_], at: Thresholds
) -> Stretch | None:
    """Find the longest run of windows in which one differs; None if that is too short to count.

    Where there are fewer windows than it takes, it must differ in all.
    """
    best = readings.stretches(differs, np.ones(len(differs))).longest
    is_long = best is not None and best.duration_s >= min(at.peer_windows, known.sum())
    return best if is_long else None


def outliers(  # noqa: PLR0913 - what is compared, and how
    run: Run,
    at: Thresholds,
    measure: Measure,
    differs: Callable[[Peers], NDArray[np.bool_]],
    *,
    peak: bool = False,
    by_node: bool = False,
) -> Iterator[Odd]:
    """Give GPUs that differ from their peers by far and for long enough.

    Args:
        run: whose GPUs to compare.
        at: by how far, and how long.
        measure: what to compare of each.
        differs: (GPUs, windows), which of them are too far off.
        peak: compare the highest reading of a window, not the mean.
        by_node: compare the two nodes of a job as wholes, too.

    """
    for peers in _compare(run, at, measure, peak=peak):
        yield from _odd(peers, differs(peers), at, is_node=False)
    for peers in _halves(run, at, measure) if by_node else ():
        yield from _odd(peers, differs(peers), at, is_node=True)


def _odd(
    peers: Peers, differs: NDArray[np.bool_], at: Thresholds, *, is_node: bool
) -> Iterator[Odd]:
    """Give GPUs that differ by more than their peers do among themselves, for long enough."""
    gap = np.abs(peers.values - peers.others)
    differs &= gap > at.peer_spread * peers.spread
    for row in np.flatnonzero(differs.any(axis=1)).tolist():
        known = ~np.isnan(peers.others[row]) & ~np.isnan(peers.values[row])
        windows = _lasting(differs[row], known, at)
        if windows is not None:
            own, others = (
                float(np.nanmean(of[row, windows.begin : windows.end]))
                for of in (peers.values, peers.others)
            )
            yield Odd(
                peers.series[row],
                *peers.span(windows),
                own=own,
                others=others,
                num_peers=len(peers.series) - 1,
                is_node=is_node,
            )
