"""All rules: each has its tests, and none fails, whatever a log holds."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from monitor.analysis import engine
from monitor.analysis.engine import evaluate
from monitor.analysis.thresholds import Thresholds
from monitor.logs.series import GpuSeries
from tests.monitor.analysis import (
    test_rules_faults,
    test_rules_logs,
    test_rules_memory,
    test_rules_peers,
    test_rules_throttling,
    test_rules_work,
)
from tests.monitor.analysis.rule_cases import NAN, findings_of
from tests.monitor.analysis.test_rules_peers import peers, slow_lines
from tests.monitor.made_runs import BEGIN_S, STEP_S, at, first, gpu, run

SUBJECTS = (
    test_rules_faults,
    test_rules_logs,
    test_rules_memory,
    test_rules_peers,
    test_rules_throttling,
    test_rules_work,
)
CASES = [case for subject in SUBJECTS for case in subject.CASES]


def test_every_rule_has_both_cases() -> None:
    """A new rule must not go untested, nor a column that a rule forgot to name."""
    afterwards = [rule for rule in engine.rules() if rule.scope != "live"]
    assert {case.rule for case in CASES} == {rule.name for rule in afterwards}
    used = {name for case in CASES for one in case.true.gpus for name in one.values}
    assert used <= engine.columns()


def test_where_and_when() -> None:
    """The stretch itself is named, and the GPU; a node's finding has no GPU."""
    (idle,) = findings_of(run(gpu(3, sm=at(first(40), 0, 95), disk=99, dfree=0)), "idle")
    assert (idle.host, idle.gpu, idle.job) == ("n1", 3, "7")
    assert (idle.begin_s, idle.end_s) == (BEGIN_S + 99 * STEP_S, BEGIN_S + 139 * STEP_S)
    (disk,) = findings_of(run(gpu(0, disk=99, dfree=0), gpu(1, disk=99, dfree=0)), "disk")
    assert (disk.host, disk.gpu) == ("n1", None)
    (odd,) = findings_of(peers({"sm": 40}, {"sm": 90}), "straggler")
    assert (odd.gpu, odd.begin_s, odd.end_s) == (2, BEGIN_S, BEGIN_S + 239 * STEP_S)
    (slow,) = findings_of(slow_lines(10), "straggler")
    assert (slow.host, slow.gpu) == ("n2", 1)


def test_a_gpu_that_changed_its_index_is_one() -> None:
    """Two swapped theirs at a requeue: the one that idles is named alone, by its last index."""
    hours_s = BEGIN_S + STEP_S * np.arange(240) + 3600 * np.arange(2)[:, None]
    swapped = [
        replace(gpu(index, time_s=hour_s, sm=0 if uuid == "A" else 95), uuid=uuid)
        for hour_s, uuids in zip(hours_s, ("AB", "BA"), strict=True)
        for index, uuid in enumerate(uuids)
    ]
    (idle,) = findings_of(run(*swapped), "idle")
    assert (idle.gpu, "100 % of 1 h 55 min" in idle.evidence) == (1, True)


def test_an_empty_run_has_no_findings() -> None:
    """Nor one whose GPUs have no samples."""
    empty = gpu(num_samples=0)
    assert evaluate(run()) == evaluate(run(empty)) == []


numbers = st.one_of(st.just(NAN), st.sampled_from((0.0, 1.0, 32.0, 100.0, 1e5)), st.floats(0, 1e6))


@st.composite
def any_series(draw: st.DrawFn) -> GpuSeries:
    """Whatever a log may hold: few samples or none, columns without a reading, no times."""
    num = draw(st.integers(0, 12))
    names = draw(st.lists(st.sampled_from(sorted(engine.columns())), unique=True, max_size=8))
    columns = {n: draw(st.lists(numbers, min_size=num, max_size=num)) for n in names}
    steps = st.floats(0, 1000)
    clock_s = np.cumsum(draw(st.lists(steps, min_size=num, max_size=num)), dtype=np.float64)
    if draw(st.booleans()):
        clock_s[:] = np.nan
    index = draw(st.one_of(st.none(), st.integers(0, 3)))
    job = draw(st.sampled_from((None, "7")))
    host = draw(st.sampled_from(("n1", "n2")))
    return gpu(index, host, job, num_samples=num, time_s=clock_s, **columns)


@pytest.mark.slow
@given(st.lists(any_series(), max_size=5), st.floats(0, 100))
@hypothesis_settings(max_examples=60, deadline=None)
def test_whatever_is_looked_at_findings_are_sound(several: list[GpuSeries], limit: float) -> None:
    """No rule fails, whatever the thresholds; times are numbers, and in order."""
    low = dict.fromkeys(Thresholds().as_dict(), limit)
    for thresholds in (Thresholds(), Thresholds(**low), Thresholds(**dict.fromkeys(low, 0.0))):
        for one in evaluate(run(*several), thresholds):
            assert (one.begin_s is None) == (one.end_s is None)
            assert one.begin_s is None or one.begin_s <= one.end_s  # type: ignore[operator]
            assert np.isfinite(one.weight)
            assert "nan" not in one.evidence
