"""The time axis of pictures: its bins, its span, its ticks."""

from datetime import timedelta

import numpy as np
import pytest

from monitor.analysis.axis import Axis, binned, choose, ticks
from monitor.logs.series import GpuSeries

BEGIN_S = 1_795_000_000.0


def gpu(
    host: str = "n1", index: int | None = 0, times: object = (1, 2, 3, 4), **columns: object
) -> GpuSeries:
    """A GPU's readings at seconds after BEGIN_S."""
    values = {name: np.array(column, np.float32) for name, column in columns.items()}
    time_s = BEGIN_S + np.array(times, np.float64)
    return GpuSeries(host, index, "7", time_s, values, {"utc_offset": "+02:00"})


def axis(bin_s: float, num_bins: int) -> Axis:
    """Bins from BEGIN_S on."""
    return Axis(BEGIN_S, bin_s, num_bins, timedelta(hours=2))


def test_bins_hold_means_or_the_highest_and_a_gap_is_a_gap() -> None:
    """Two samples a bin; what has no reading and what has no sample are NaN, never 0."""
    times = gpu(times=(1, 2, 3, 4, 30, 31))
    values = np.array([10, 20, np.nan, 40, np.nan, np.nan], np.float32)
    mean = binned(axis(2, 16), times, values, worst=False)
    worst = binned(axis(2, 16), times, values, worst=True)
    assert mean[:2].tolist() == [15, 40]
    assert worst[:2].tolist() == [20, 40]
    assert np.isnan(mean[2:]).all()
    assert np.isnan(worst[2:]).all()


def test_a_bin_between_two_samples_is_no_gap() -> None:
    """Samples that come a little late leave no hole: each speaks for the time before it."""
    times = gpu(times=(1.0, 2.0, 3.1, 4.2, 5.2, 6.0))
    values = np.arange(6, dtype=np.float32)
    found = binned(axis(1, 6), times, values, worst=False)
    assert not np.isnan(found).any()
    assert found.tolist() == [0, 1, 2, 2, 3, 4.5]


def test_an_interval_that_grows_longer_is_no_gap() -> None:
    """As in the report: each sample speaks for its own interval; a pause of both is a gap."""
    fast, slow = np.arange(1.0, 101), np.arange(110.0, 401, 10)
    times = gpu(times=np.concatenate([fast, slow, 600 + slow]))
    found = binned(axis(1, 1000), times, np.full(160, 7, np.float32), worst=False)
    assert (found[:400] == 7).all()
    assert np.isnan(found[400:690]).all()
    assert (found[710:] == 7).all()


def test_binning_agrees_with_the_plain_way() -> None:
    """The vectorised bins hold what a loop finds, on a day with random gaps."""
    rng = np.random.default_rng(0)
    times = np.sort(rng.uniform(0, 1000, 700))
    values = np.where(rng.random(700) < 0.2, np.nan, rng.uniform(0, 100, 700)).astype(np.float32)
    found = binned(axis(10, 100), gpu(times=times), values, worst=False)
    for place in range(100):
        inside = values[(times > place * 10) & (times <= place * 10 + 10)]
        reported = inside[~np.isnan(inside)]
        if reported.size:
            assert found[place] == pytest.approx(reported.mean(), rel=1e-4)
        elif inside.size:
            assert np.isnan(found[place])


def test_the_axis_spans_samples_and_events_in_the_nodes_own_time() -> None:
    """It begins before the first sample by an interval, and tells day and offset."""
    made = choose([gpu(sm=[1, 2, 3, 4])], [BEGIN_S + 60], 500)
    assert (made.begin_s, made.end_s, made.bin_s) == (BEGIN_S, BEGIN_S + 60, 1)
    assert made.words == "2026-11-18, local time (UTC+02:00)"
    assert made.local(BEGIN_S).utcoffset() == timedelta(hours=2)


def test_ticks_stand_at_round_local_times() -> None:
    """Whole hours of the nodes' clocks, also where the offset is no whole hour."""
    day = Axis(BEGIN_S, 60, 1440, timedelta(hours=5, minutes=30))
    places, labels = ticks(day, 8)
    assert len(places) <= 8
    assert all(day.local(place).minute == 0 for place in places)
    assert any("\n" in label for label in labels), "midnight has its date"
    seconds, words = ticks(Axis(BEGIN_S, 1, 20, None), 5)
    assert len(seconds) <= 5
    assert words[0].count(":") == 2
    years, _ = ticks(Axis(BEGIN_S, 86_400, 4000, None), 5)
    assert len(years) <= 12
    assert all(place % 86_400 == 0 for place in years)
    _, undated = ticks(Axis(80_000, 60, 1440, None), 8)
    assert not any("\n" in label for label in undated)
