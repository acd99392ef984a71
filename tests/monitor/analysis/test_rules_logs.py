"""Rules on logs that have a gap, or end early: just above each threshold and just below."""

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from monitor.logs.series import Run
from tests.monitor.analysis.rule_cases import Case, findings_of
from tests.monitor.made_runs import BEGIN_S, NUM_SAMPLES, STEP_S, gpu, run


def gap(seconds: float) -> Run:
    """A log without rows for a while."""
    clock_s = BEGIN_S + STEP_S * np.arange(NUM_SAMPLES)
    clock_s[100:] += seconds - STEP_S
    return run(gpu(time_s=clock_s))


def shorter(seconds: float) -> Run:
    """Two nodes, the second of which ends before the first."""
    clock_s = BEGIN_S + np.arange(0, 3600, STEP_S)
    earlier_s = clock_s - seconds
    return run(gpu(time_s=clock_s), gpu(host="n2", time_s=earlier_s[earlier_s >= BEGIN_S]))


def rows_end(seconds: float) -> Run:
    """Two GPUs of a node, of which the second has no rows at the end."""
    return run(*(gpu(i, num_samples=NUM_SAMPLES - i * int(seconds / STEP_S)) for i in range(2)))


CASES = [
    Case("gap", "hint", gap(76), gap(75), "nothing written for 1 min, where a sample is usual"),
    Case("gap", "warning", rows_end(90), rows_end(75), "its rows end 2 min before"),
    Case("gap", "warning", shorter(76), shorter(75), "its log ends 1 min before"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_threshold(case: Case) -> None:
    """What is just over it is found, with place, time and numbers; what is just below is not."""
    case.check()


def test_a_gpu_that_only_a_start_before_had_is_not_gone() -> None:
    """A requeue gave the job others of the node; in the last start's rows one is missed."""
    starts = np.repeat([0, 1], NUM_SAMPLES // 2)
    before, after = (replace(one, start=starts) for one in rows_end(900).gpus[:1] * 2)
    gone = replace(rows_end(NUM_SAMPLES // 2 * STEP_S).gpus[1], start=0)
    assert not findings_of(run(before, gone), "gap")
    missed = replace(rows_end(900).gpus[1], start=starts[: NUM_SAMPLES - 60])
    assert [one.gpu for one in findings_of(run(after, missed), "gap")] == [1]


def test_a_node_without_a_log_is_reported() -> None:
    """It had ranks; where no node has a log, there was no monitor, and that was asked for."""
    ups = tuple({"event": "rank_up", "rank": i, "node": f"n{i + 1}.here"} for i in range(2))
    (found,) = findings_of(run(gpu(host="n1"), events=ups), "gap")
    assert (found.host, found.severity) == ("n2", "warning")
    assert not findings_of(run(gpu(host="n1"), gpu(host="n2"), events=ups), "gap")
    assert not findings_of(run(events=ups), "gap")


def test_a_gap_between_two_starts_is_none() -> None:
    """The job was at rest, by its own word."""
    start = datetime.fromtimestamp(BEGIN_S + 100 * STEP_S + 200, UTC).isoformat()
    looked_at = gap(400)
    resting = Run("made", looked_at.gpus, events=({"event": "start", "time": start},))
    assert findings_of(looked_at, "gap")
    assert not findings_of(resting, "gap")


@pytest.mark.parametrize("off_s", [-600, 600])
def test_a_node_whose_clock_is_off_is_not_gone(off_s: int) -> None:
    """Neither it nor the others, behind which it is; a node that is gone is found all the same."""
    first, second = shorter(300).gpus
    off = gpu(host="n3", time_s=first.time_s + off_s)
    assert not findings_of(run(first, off), "gap")
    assert [one.host for one in findings_of(run(first, second, off), "gap")] == ["n2"]


def test_a_node_that_the_job_left_ends_early_without_a_finding() -> None:
    """A requeue went to others; one that its last start uses must not end before them."""
    (before, after) = shorter(300).gpus
    run_on = {"event": "start", "job_id": before.job, "nodes": [f"{before.host}.here"]}
    both = run_on | {"nodes": [before.host, after.host]}
    assert findings_of(run(before, after, events=(both,)), "gap")
    assert not findings_of(run(before, after, events=(both, run_on)), "gap")
