"""Rules on how busy a GPU is, and what it waits for: just above each threshold and just below."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from monitor.analysis.engine import evaluate
from monitor.analysis.thresholds import Thresholds
from monitor.logs.series import Run
from tests.monitor.analysis.rule_cases import Case, findings_of, line
from tests.monitor.made_runs import BEGIN_S, NUM_SAMPLES, STEP_S, at, first, gpu, run

EVERY_FIFTH = slice(22, 240, 5)


def dips(num: int, **more: Any) -> Run:
    """A GPU that works but for a fifth of its samples, or less."""
    places = list(range(*EVERY_FIFTH.indices(NUM_SAMPLES)))[:num]
    return run(gpu(sm=at(places, 20, 95), **more))


def waits(*shares_pct: float) -> Run:
    """Lines of metrics that have how long the trainer waited for data."""
    return run(metrics=tuple(line(i, data_wait_pct=pct) for i, pct in enumerate(shares_pct)))


CASES = [
    Case("idle", "warning", run(gpu(sm=at(first(12), 0, 95))), run(gpu(sm=at(first(11), 0, 95))),
         "idle for 3 min at a stretch, 5 % of 55 min after the start-up"),
    Case("idle", "hint",
         run(gpu(sm=np.where(np.arange(480) // 12 == 10, 5, 95), num_samples=480)),
         run(gpu(sm=np.where(np.arange(480) // 12 == 10, 6, 95), num_samples=480)),
         "3 % of 1 h 55 min after the start-up; up to 59 GiB of its memory in use"),
    Case("hung", "warning",
         run(gpu(sm=100, mem=at(first(20), 1, 40), pwr=at(first(20), 310, 600))),
         run(gpu(sm=100, mem=at(first(19), 1, 40), pwr=at(first(19), 310, 600))),
         "busy without work for 5 min, then it went on"),
    Case("hung", "error",
         run(gpu(sm=100, mem=at(slice(200, None), 0, 40), pwr=at(slice(200, None), 315, 600))),
         run(gpu(sm=100, mem=at(slice(200, None), 0, 40), pwr=at(slice(200, None), 316, 600))),
         "10 min, up to the end of the log: at least 90 % busy, no memory traffic, 315 W of 700 W"),
    Case("hung", "error",
         run(gpu(sm=100, mem=0, pwr=170, step=120)),
         run(gpu(sm=100, mem=0, pwr=170, step=np.arange(NUM_SAMPLES))),
         "busy without work for 1 h"),
    Case("data", "warning", dips(44, cpu=95), dips(43, cpu=95),
         "less than 50 % busy in 20 % of its samples, and in 100 % of these"),
    Case("data", "warning", dips(44, cpu=90), dips(44, cpu=89), "CPUs were 90 % full"),
    Case("data", "warning", waits(20, 20, 20, 20, 20), waits(20, 20, 20, 20, 19),
         "waited for data for 20 % of its time, by 5 lines"),
    Case("data", "warning", waits(30, 30, 30, 30, 30), waits(90, 90, 90, 90), "30 % of its time"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_threshold(case: Case) -> None:
    """What is just over it is found, with place, time and numbers; what is just below is not."""
    case.check()


def test_the_start_up_of_every_start_starves_nobody() -> None:
    """Full CPUs and a GPU that waits, for the first minutes of each of four: it compiles."""
    parts = np.arange(NUM_SAMPLES) % 60
    one = gpu(sm=np.where(parts < 16, 10, 95), cpu=np.where(parts < 16, 100, 20))
    starts = replace(one, start=np.arange(NUM_SAMPLES, dtype=np.int32) // 60)
    assert not findings_of(run(starts), "data")
    assert findings_of(run(one), "data")


def test_the_start_up_and_a_lone_blip_are_no_idle_time() -> None:
    """Idle for the first five minutes is usual; one slightly busy sample ends no idle time."""
    assert not findings_of(run(gpu(sm=at(slice(0, 21), 0, 95))), "idle")
    sm = at(first(24), 0, 95)
    sm[112] = 20
    assert findings_of(run(gpu(sm=sm)), "idle")[0].evidence.startswith("idle for 6 min")


def test_what_takes_no_time_is_no_idle_time() -> None:
    """All samples of one second, though no minute of idleness is asked for."""
    moment = np.full(NUM_SAMPLES, float(BEGIN_S))
    limits = Thresholds(idle_minutes=0, startup_minutes=0)
    assert not evaluate(run(gpu(sm=0, time_s=moment)), limits)


def test_a_gap_ends_a_stretch() -> None:
    """Two minutes idle before an hour without a sample and two after it are no three minutes."""
    clock_s = BEGIN_S + STEP_S * np.arange(NUM_SAMPLES)
    clock_s[108:] += 3600
    sm = at(slice(100, 117), 0, 95)
    assert findings_of(run(gpu(sm=sm)), "idle")
    assert not findings_of(run(gpu(sm=sm, time_s=clock_s)), "idle")


def test_a_start_up_lasts_up_to_the_first_step() -> None:
    """Twelve minutes of unpacking and compiling are no idle time; what comes after a step is."""
    sm = at(slice(0, 48), 0, 95)
    starts_late = np.maximum(NUM_SAMPLES - np.arange(NUM_SAMPLES)[::-1] - 48, 0)
    assert findings_of(run(gpu(sm=sm)), "idle")
    assert findings_of(run(gpu(sm=sm, step=np.arange(NUM_SAMPLES))), "idle")
    assert not findings_of(run(gpu(sm=sm, step=starts_late)), "idle")
    assert not findings_of(run(gpu(sm=sm, step=starts_late + 7000)), "idle")  # it resumed


def test_a_first_step_that_does_not_come_is_waited_for_half_an_hour() -> None:
    """As long as the watchdog waits."""
    (idle,) = findings_of(run(gpu(sm=0, step=0)), "idle")
    assert idle.evidence.startswith("idle for 30 min at a stretch, 100 % of 30 min")
    assert findings_of(run(gpu(sm=0)), "idle")[0].evidence.startswith("idle for 55 min")
    limits = Thresholds(startup_minutes=40)
    assert "100 % of 20 min" in findings_of(run(gpu(sm=0, step=0)), "idle", limits)[0].evidence


def test_every_start_has_its_start_up() -> None:
    """Three requeues of four idle minutes each are no reason to ask for fewer GPUs."""
    begins = range(0, NUM_SAMPLES, 60)
    sm = at([i for begin in begins for i in range(begin, begin + 16)], 0, 95)
    start = np.arange(NUM_SAMPLES) // 60
    assert findings_of(run(gpu(sm=sm)), "idle")
    assert not findings_of(run(replace(gpu(sm=sm), start=start)), "idle")
    clock_s = BEGIN_S + STEP_S * np.arange(NUM_SAMPLES) + 3600 * start
    assert not findings_of(run(gpu(sm=sm, time_s=clock_s)), "idle")


def test_only_full_cpus_while_it_works_speak_of_starving() -> None:
    """How full they were before the work began says nothing of it."""
    active = at(slice(None, 100), 0, 95)
    active[100::3] = 20
    looked_at = run(gpu(sm=active, cpu=at(slice(None, 100), 5, 99)))
    (found,) = findings_of(looked_at, "data")
    assert "in 100 % of these" in found.evidence
