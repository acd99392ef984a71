"""What rules use to read a GPU's samples: masks over samples, and stretches of time in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from monitor.analysis.findings import Finding
from monitor.logs.series import of_hosts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from monitor.analysis.findings import Severity
    from monitor.analysis.thresholds import Thresholds
    from monitor.logs.series import GpuSeries, Run


SETTLED = ("startup_minutes", "first_step_minutes")
"""What `settled` goes by."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive samples: from `begin` up to, but not including, `end`."""

    begin: int
    end: int
    duration_s: float


def finding(  # noqa: PLR0913 - a finding has that many parts
    severity: Severity,
    series: GpuSeries,
    where: Stretch | NDArray[np.bool_] | None,
    evidence: str,
    suggestion: str,
    *,
    weight: float = 0.0,
    of_host: bool = False,
) -> Finding:
    """Make a finding of one GPU, or of its host; `where` are its samples, None for all."""
    begin_s, end_s = _span(series, where)
    return Finding(
        severity=severity,
        host=series.host,
        gpu=None if of_host else series.gpu,
        begin_s=begin_s,
        end_s=end_s,
        evidence=evidence,
        suggestion=suggestion,
        job=series.job,
        weight=weight,
    )


def _span(
    series: GpuSeries, where: Stretch | NDArray[np.bool_] | None
) -> tuple[float | None, float | None]:
    """Return when the first and the last of some samples were taken."""
    if isinstance(where, Stretch):
        first, last = max(0, where.begin - 1), where.end - 1
    else:
        some = np.arange(series.num_samples) if where is None else np.flatnonzero(where)
        if not some.size:
            return None, None
        first, last = int(some[0]), int(some[-1])
    written_s = series.written_s
    times = [float(written_s[number]) for number in (first, last)]
    return (None, None) if np.isnan(times).any() else (times[0], times[1])


def gpus(run: Run) -> Iterator[GpuSeries]:
    """Return what belongs to a GPU; nodes without one are left out."""
    return (series for series in run.gpus if series.gpu is not None and series.num_samples)


def hosts(run: Run, column: str) -> list[GpuSeries]:
    """Return each node's series with a column of the host, from one GPU: all have the same."""
    return of_hosts([series for series in run.gpus if series.column(column) is not None])


def busy(series: GpuSeries, thresholds: Thresholds) -> NDArray[np.bool_]:
    """Return in which samples a GPU is busy; in all, where that is not recorded."""
    active = series.activity
    return (
        np.ones(series.num_samples, np.bool_) if active is None else active > thresholds.busy_sm_pct
    )


def settled(series: GpuSeries, thresholds: Thresholds) -> NDArray[np.bool_]:
    """Return which samples lie after a start-up; all where there are no times.

    Each start of the job has a start-up, and so has the log after a gap. It takes longer where the
    rank's first step does.
    """
    if np.isnan(series.time_s).all():
        return np.ones(series.num_samples, np.bool_)
    is_new = np.isnan(series.steps_s)
    is_new[1:] |= series.starts[1:] != series.starts[:-1]
    since_s = np.fmax.accumulate(np.where(is_new, series.time_s, -np.inf))
    minutes: NDArray[np.float64] | float = thresholds.startup_minutes
    step = series.column("step")
    if step is not None:
        is_step = np.append(False, step[1:] > step[:-1]) & ~is_new
        step_s = np.fmax.accumulate(np.where(is_step, series.time_s, -np.inf))
        minutes = np.where(step_s > since_s, minutes, max(minutes, thresholds.first_step_minutes))
    return series.time_s >= since_s + 60 * minutes


@dataclass(frozen=True, slots=True)
class Stretches:
    """All stretches in which something held, in order of time: an array of (stretches,) each."""

    begins: NDArray[np.intp]
    ends: NDArray[np.intp]
    durations_s: NDArray[np.float64]

    def _at(self, index: int) -> Stretch:
        begin, end = int(self.begins[index]), int(self.ends[index])
        return Stretch(begin, end, float(self.durations_s[index]))

    @property
    def longest(self) -> Stretch | None:
        """The one that lasted longest; None if there is none."""
        return self._at(int(self.durations_s.argmax())) if self.begins.size else None

    def worst(self, least_s: float, num_samples: int) -> tuple[Stretch | None, int]:
        """Choose among those that lasted long enough the one up to the end, else the longest.

        Returns: that one, None if there is none; and how many others lasted long enough.

        """
        found = np.flatnonzero(self.durations_s >= least_s)
        if not found.size:
            return None, 0
        lasts = self.ends[found[-1]] == num_samples
        best = int(found[-1] if lasts else found[self.durations_s[found].argmax()])
        return self._at(best), len(found) - 1

    @property
    def total_s(self) -> float:
        """How long it held in all."""
        return float(self.durations_s.sum())


def stretches(mask: NDArray[np.bool_], steps_s: NDArray[np.floating]) -> Stretches:
    """Find the stretches of samples in which `mask` holds; a gap ends a stretch.

    Args:
        mask: of each sample.
        steps_s: the time that each stands for; NaN after a gap.

    """
    is_gap = np.isnan(steps_s)
    holds = np.zeros(len(mask) + 2, np.int8)
    holds[1:-1] = mask & ~is_gap
    begins, ends = np.flatnonzero(np.diff(holds)).reshape(-1, 2).T
    known = np.where(is_gap, 0, steps_s)
    passed_s = np.concatenate(([0.0], np.cumsum(known, dtype=np.float64)))
    return Stretches(begins, ends, passed_s[ends] - passed_s[begins])


def up_to_the_end(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which samples belong to a stretch that lasts up to the last one."""
    return np.logical_and.accumulate(mask[::-1])[::-1]


def reaches(value: float, limit: float) -> bool:
    """Whether a value is above 0, and at least a threshold, which may be 0."""
    return value > 0 and value >= limit


def share_pct(mask: NDArray[np.bool_], among: NDArray[np.bool_]) -> float:
    """Return the share of the samples `among` in which `mask` holds, in %; 0 if there are none."""
    total = int(among.sum())
    return 100 * int((mask & among).sum()) / total if total else 0.0
