"""Time within a host's log: the order of its rows is the truth, and so is its monotonic stamp.

The wall clock is for showing. It can be set back, by NTP or by the hour that autumn has twice, and
forward; what passed between two rows does not change by it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from monitor.logs import constants
from monitor.logs.decode import NO_TIME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_TOLERANCE_S = 2
"""Both clocks are written in whole seconds, and are not read in the same moment."""

_HOUR_S = 3600

_NUM_NEAR = 5
"""So many steps on either side of one show what is usual there."""


def shifts_s(
    wall_s: NDArray[np.int64], mono_s: NDArray[np.floating], nominal_s: NDArray[np.floating]
) -> NDArray[np.int64] | None:
    """Return how far the clock was off in each row of one host, by its last row; None: nowhere.

    Args:
        wall_s: as written, in the order of the log; NO_TIME where a row has none.
        mono_s: the monotonic stamps; NaN where a row has none.
        nominal_s: the intervals that the log states; NaN where it states none.

    Returns: what `wall_s` lacks, so that what passed is the difference of two sums.

    """
    rows = np.flatnonzero(wall_s != NO_TIME)
    likely_s = _likely(wall_s[rows])
    passed_s = np.diff(likely_s).astype(np.float64)
    is_wrong = passed_s < 0
    usual_s = np.full(len(passed_s), _usual_s(passed_s))
    usual_s = np.where(np.isnan(nominal_s[rows][1:]), usual_s, nominal_s[rows][1:])
    stamped_s = np.diff(mono_s[rows].astype(np.float64))
    known = stamped_s >= 0  # a boot begins anew
    true_s = np.where(known, stamped_s, usual_s)
    is_wrong |= known & (np.abs(passed_s - stamped_s) > _TOLERANCE_S)
    # summer time began in a log that states neither offset nor interval, as none of dmon's does
    is_far = passed_s > constants.GAP_INTERVALS * np.maximum(1.0, usual_s)
    is_summer = np.abs(passed_s - _HOUR_S - usual_s) <= _TOLERANCE_S
    is_wrong |= is_far & is_summer & np.isnan(nominal_s[rows][1:])
    if not is_wrong.any() and (likely_s == wall_s[rows]).all():
        return None
    for first, last in _excursions(np.where(known, 0, passed_s), usual_s):
        both_s = passed_s[first] + passed_s[last]
        true_s[first] = min(usual_s[first], both_s)
        true_s[last] = both_s - true_s[first]
        is_wrong[[first, last]] = True
    lacks_s = np.cumsum(np.where(is_wrong, np.rint(true_s - passed_s), 0).astype(np.int64))
    shift_s = np.zeros(len(wall_s), np.int64)
    shift_s[rows[1:]] = lacks_s
    # After it was set the clock is right, or it would not have been set.
    shift_s[rows] += likely_s - wall_s[rows] - lacks_s[-1]
    return shift_s


def _likely(wall_s: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give the times, and for one that no clock shows, of a damaged year, that of a row beside."""
    is_likely = (wall_s >= 0) & (wall_s < constants.LATEST_S)
    if is_likely.all() or not is_likely.any():
        return wall_s
    places = np.where(is_likely, np.arange(len(wall_s)), is_likely.argmax())
    return wall_s[np.maximum.accumulate(places)]


def _excursions(
    passed_s: NDArray[np.float64], usual_s: NDArray[np.float64]
) -> Iterator[tuple[int, int]]:
    """Find pairs of steps by which the clock went wrong, ahead or back, and then came right again.

    As where the day of one row is damaged: over both steps together no more than usual passed, so
    that neither is a gap, and what was written before them is as right as what came after.
    """
    far = np.flatnonzero(np.abs(passed_s) > constants.GAP_INTERVALS * np.maximum(1.0, usual_s))
    both_s = passed_s[far[:-1]] + passed_s[far[1:]]
    is_even = (both_s >= 0) & (both_s <= 2 * usual_s[far[:-1]] + _TOLERANCE_S)
    last = -1
    for first, second in zip(far[:-1][is_even], far[1:][is_even], strict=True):
        if first > last:
            last = second
            yield first, second


def is_odd(wall_s: NDArray[np.int64]) -> bool:
    """Return whether the wall clock alone leaves open what passed: it went back, or far ahead."""
    steps = np.diff(wall_s[wall_s != NO_TIME])
    ahead = steps[steps > 0]
    return bool(
        (steps < 0).any() or (ahead.size and ahead.max() > constants.longest_s(ahead.min()))
    )


def steps_s(
    time_s: NDArray[np.floating] | NDArray[np.int64], nominal_s: NDArray[np.floating] | float
) -> NDArray[np.float64]:
    """Give the time that each sample stands for: since the one before.

    NaN where nothing was sampled: at the first one, and after a gap, which is longer than
    `constants.GAP_INTERVALS` of what is usual there.

    Args:
        time_s: of one GPU's samples; it never goes back.
        nominal_s: the interval that the log states, of each sample or of all; NaN: it states none.

    """
    steps = np.full(len(time_s), np.nan)
    steps[1:] = np.diff(time_s)
    steps[steps > constants.GAP_INTERVALS * np.maximum(1.0, usual_s(steps, nominal_s))] = np.nan
    return steps


def usual_s(
    steps: NDArray[np.float64], nominal_s: NDArray[np.floating] | float
) -> NDArray[np.float64]:
    """Return what interval is usual around each step: the log's word, or that of its neighbours.

    An interval may change within a log. What is no longer than the shortest usual one allows is
    not read twice, and has that one.
    """
    is_ahead = steps > 0  # of several copies of a log most steps are none
    ahead = steps[is_ahead]
    if not ahead.size:
        return np.zeros(len(steps))
    least_s = float(np.percentile(ahead, 5, method="lower"))
    usual = np.full(len(steps), least_s)
    long = np.flatnonzero(steps > constants.longest_s(least_s))
    if long.size:
        place = np.cumsum(is_ahead)[long] - 1
        padded = np.pad(ahead, _NUM_NEAR)  # nothing is usual beyond the ends
        near = np.arange(_NUM_NEAR)
        before = padded[place[:, None] + near]
        after = padded[place[:, None] + near + _NUM_NEAR + 1]
        usual[long] = np.maximum(np.median(before, axis=1), np.median(after, axis=1))
        nominal = np.broadcast_to(nominal_s, steps.shape)[long]
        usual[long] = np.fmax(usual[long], nominal)
    return usual


def _usual_s(passed_s: NDArray[np.float64]) -> float:
    ahead = passed_s[passed_s > 0]
    return float(np.median(ahead)) if ahead.size else 1.0
