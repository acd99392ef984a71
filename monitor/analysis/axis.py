"""The time axis that all parts of a picture share, and readings put into its bins."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING

import numpy as np

from monitor.errors import UserError
from monitor.logs import gutil

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from monitor.logs.series import GpuSeries

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400
_STEPS_S = (
    1, 2, 5, 10, 15, 30,
    *(_MINUTE_S * minutes for minutes in (1, 2, 5, 10, 15, 30)),
    *(_HOUR_S * hours for hours in (1, 2, 3, 6, 12)),
    *(_DAY_S * days for days in (1, 2, 7, 14, 28, 91, 182, 364)),
)  # fmt: skip
_UNDATED_S = 30 * _DAY_S
"""Times below this count from a midnight, not from 1970: no log is that old."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Bins of equal length; a bin holds what is after its begin, up to and with its end."""

    begin_s: float
    """Since 1970, UTC."""
    bin_s: float
    num_bins: int
    offset: timedelta | None
    """Of local time from UTC; None: not recorded, and times are as the logs have them."""

    @property
    def end_s(self) -> float:
        """Where the last bin ends."""
        return self.begin_s + self.bin_s * self.num_bins

    @property
    def dated(self) -> bool:
        """Whether the day is known."""
        return self.begin_s > _UNDATED_S

    def local(self, time_s: float) -> datetime:
        """Give a moment as the node's own clock showed it."""
        return datetime.fromtimestamp(time_s, UTC).astimezone(timezone(self.offset or timedelta()))

    @property
    def words(self) -> str:
        """What the axis shows: the days, and whose time it is."""
        if not self.dated:
            return "time of day (the log has no date)"
        days = [f"{self.local(s):%Y-%m-%d}" for s in (self.begin_s, self.end_s)]
        day = days[0] if days[0] == days[1] else " to ".join(days)
        return f"{day}, {self.zone}"

    @property
    def zone(self) -> str:
        """Whose time it is, in words."""
        if self.offset is None:
            return "local time of the nodes"
        return f"local time ({timezone(self.offset).tzname(None)})"


def usable(gpus: Sequence[GpuSeries], more_s: Sequence[float]) -> tuple[GpuSeries, ...]:
    """Leave out what cannot be placed: rows without a time, without a date beside dated ones.

    Raises:
        UserError: nothing has a time.

    """
    timed = [series for series in gpus if np.isfinite(series.time_s).any()]
    dated = [series for series in timed if np.nanmax(series.time_s) > _UNDATED_S]
    kept = tuple(dated if dated or more_s else timed)
    if not kept and not more_s:
        found = "no samples" if not gpus else "rows without a time"
        raise UserError(
            "logs must hold samples with their time",
            found,
            "record with `python -m monitor record`, or with `nvidia-smi dmon -o DT`",
        )
    return kept


def choose(gpus: Sequence[GpuSeries], more_s: Iterable[float], max_bins: int) -> Axis:
    """Span all samples and the moments `more_s`, with bins no shorter than the usual interval."""
    intervals_s = [series.interval_s for series in gpus if series.interval_s > 0]
    interval_s = max(0.1, float(np.median(intervals_s))) if intervals_s else 1.0
    begins = [float(np.nanmin(series.time_s)) - interval_s for series in gpus]
    ends = [float(np.nanmax(series.time_s)) for series in gpus]
    moments = [time_s for time_s in more_s if math.isfinite(time_s)]
    begin_s, end_s = min(begins + moments), max(ends + moments)
    span_s = max(end_s - begin_s, interval_s)
    bin_s = max(span_s / max_bins, interval_s)
    return Axis(begin_s, bin_s, max(1, math.ceil(span_s / bin_s - 1e-9)), utc_offset(gpus))


def utc_offset(gpus: Iterable[GpuSeries]) -> timedelta | None:
    """Return the offset of local time from UTC that is recorded first; None if none is."""
    for series in gpus:
        offset = gutil.parse_offset(series.facts.get("utc_offset", ""))
        if offset is not None:
            return offset
    return None


def ticks(axis: Axis, most: int) -> tuple[list[float], list[str]]:
    """Choose at most `most` moments, seconds since 1970, and their format."""
    span_s = axis.end_s - axis.begin_s
    days_s = _DAY_S * math.ceil(span_s / most / _DAY_S)
    step_s = next((s for s in _STEPS_S if span_s / s <= most), days_s)
    shift_s = axis.offset.total_seconds() if axis.offset else 0.0
    first = math.ceil((axis.begin_s + shift_s) / step_s) * step_s - shift_s
    places = [first + step_s * i for i in range(int((axis.end_s - first) / step_s) + 1)]
    form = "%H:%M:%S" if step_s < _MINUTE_S else "%H:%M" if step_s < _DAY_S else "%d %b"
    return places, [_words(axis, place, form) for place in places]


def _words(axis: Axis, place: float, form: str) -> str:
    moment = axis.local(place)
    is_midnight = moment.hour == moment.minute == moment.second == 0
    if axis.dated and is_midnight and form == "%H:%M":
        form = "%H:%M\n%d %b"
    return f"{moment:{form}}"


def binned(
    axis: Axis, series: GpuSeries, values: NDArray[np.floating], *, worst: bool
) -> NDArray[np.float32]:
    """Put (samples,) values of a series into (bins,): their mean, or the highest.

    A sample stands for the time since the one before, if that is no gap: a bin too short to hold
    one takes it over. NaN: no reading, which is a gap and not a zero.
    """
    timed = np.isfinite(series.time_s)
    time_s, values = series.time_s[timed], values[timed]
    means = np.full(axis.num_bins, np.nan, np.float32)
    if not time_s.size:
        return means
    place = np.ceil((time_s - axis.begin_s) / axis.bin_s - 1e-9).astype(np.int64) - 1
    place = np.clip(place, 0, axis.num_bins - 1)
    first = np.flatnonzero(np.diff(place, prepend=-1))
    means[place[first]] = together(values, first, worst=worst)
    is_empty = np.ones(axis.num_bins, np.bool_)
    is_empty[place[first]] = False
    empty = np.flatnonzero(is_empty)
    if empty.size:
        means[empty] = _of_next(axis, time_s, values, series.steps_s[timed], empty)
    return means


def together(
    values: NDArray[np.floating], first: NDArray[np.intp], *, worst: bool
) -> NDArray[np.floating]:
    """Make one value, or row, of each stretch that begins at `first`: the highest, or the mean."""
    if worst:
        return np.asarray(np.fmax.reduceat(values, first, axis=0))
    absent = np.isnan(values)
    sums = np.add.reduceat(np.where(absent, 0, values).astype(np.float64), first, axis=0)
    counts = np.add.reduceat(~absent, first, axis=0, dtype=np.int64)
    return np.asarray(np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0))


def _of_next(
    axis: Axis,
    time_s: NDArray[np.float64],
    values: NDArray[np.floating],
    steps: NDArray[np.floating],
    empty: NDArray[np.int64],
) -> NDArray[np.floating]:
    """Give bins without a sample of their own the next one, if it stands for that time."""
    known = steps[~np.isnan(steps)]
    usual_s = float(np.median(known)) if known.size else axis.bin_s
    lasts_s = np.where(np.isnan(steps), usual_s, steps)
    middle_s = axis.begin_s + (empty + 0.5) * axis.bin_s
    following = np.searchsorted(time_s, middle_s)
    has_next = following < len(time_s)
    following[~has_next] = 0
    is_its = has_next & (time_s[following] - lasts_s[following] < middle_s)
    return np.where(is_its, values[following], np.nan)
