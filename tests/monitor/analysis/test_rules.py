"""Each rule, just above its threshold and just below."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from monitor.analysis import engine
from monitor.analysis.engine import evaluate
from monitor.analysis.findings import Finding
from monitor.analysis.thresholds import Thresholds
from monitor.logs.series import GpuSeries, Run
from tests.monitor.made_runs import BEGIN_S, NUM_SAMPLES, STEP_S, at, first, gpu, mark, run

NAN = float("nan")
EVERY_FIFTH = slice(22, 240, 5)


def line(number: int, **more: Any) -> dict[str, Any]:
    """A line of the trainer's metrics, one a minute."""
    time = datetime.fromtimestamp(BEGIN_S, UTC) + timedelta(minutes=number)
    return {"time": time.isoformat(), "step": number, "samples_per_s": 10.0, **more}


def peers(odd: dict[str, Any], others: dict[str, Any]) -> Run:
    """Four GPUs of a node, the third of which differs."""
    return run(*(gpu(i, **(odd if i == 2 else others)) for i in range(4)))


def dips(num: int, **more: Any) -> Run:
    """A GPU that works but for a fifth of its samples, or less."""
    places = list(range(*EVERY_FIFTH.indices(NUM_SAMPLES)))[:num]
    return run(gpu(sm=at(places, 20, 95), **more))


def gap(seconds: float) -> Run:
    """A log that nobody wrote to for a while."""
    clock_s = BEGIN_S + STEP_S * np.arange(NUM_SAMPLES)
    clock_s[100:] += seconds - STEP_S
    return run(gpu(time_s=clock_s))


def shorter(seconds: float) -> Run:
    """Two nodes, the second of which ends before the first."""
    clock_s = BEGIN_S + np.arange(0, 3600, STEP_S)
    return run(gpu(time_s=clock_s), gpu(host="n2", time_s=clock_s - seconds))


def slow_lines(num: int) -> Run:
    """Of ten lines of metrics some name rank 5 slow."""
    slow = {"slow_ranks": [{"rank": 5, "node": "n2", "ratio": 1.5}]}
    lines = tuple(line(i, **(slow if i < num else {})) for i in range(10))
    return run(metrics=lines, events=({"rank": 5, "local_rank": 1},))


def both_slow(num: int) -> Run:
    """Of ten lines of two ranks some name the one slow, and as many the other."""
    slow = [{"slow_ranks": [{"rank": rank, "node": "n2", "ratio": 1.9}]} for rank in (0, 1)]
    lines = tuple(line(i, **slow[i % 2] if i < 2 * num else {}) for i in range(10))
    return run(metrics=lines, events=tuple({"rank": r, "local_rank": r} for r in (0, 1)))


def waits(*shares_pct: float) -> Run:
    """Lines of metrics that tell how long the trainer waited for data."""
    return run(metrics=tuple(line(i, data_wait_pct=pct) for i, pct in enumerate(shares_pct)))


class Case(NamedTuple):
    """What a rule must find in one run, and not in another that is hardly different."""

    rule: str
    severity: str
    true: Run
    false: Run
    words: str


OURS = {"interval_s": "15"}
CASES = [
    Case("idle", "warning", run(gpu(sm=at(first(12), 0, 95))), run(gpu(sm=at(first(11), 0, 95))),
         "idle for 3 min at a stretch, 5 % of 1 h 00 min"),
    Case("idle", "hint",
         run(gpu(sm=np.where(np.arange(480) // 12 == 10, 5, 95), num_samples=480)),
         run(gpu(sm=np.where(np.arange(480) // 12 == 10, 6, 95), num_samples=480)),
         "3 % of 2 h 00 min; up to 59 GiB of its memory in use"),
    Case("hung", "warning",
         run(gpu(sm=100, mem=at(first(20), 1, 40), pwr=at(first(20), 310, 600))),
         run(gpu(sm=100, mem=at(first(19), 1, 40), pwr=at(first(19), 310, 600))),
         "busy without work for 5 min, then it went on"),
    Case("hung", "error",
         run(gpu(sm=100, mem=at(slice(200, None), 0, 40), pwr=at(slice(200, None), 315, 600))),
         run(gpu(sm=100, mem=at(slice(200, None), 0, 40), pwr=at(slice(200, None), 316, 600))),
         "10 min, up to the end of the log: at least 90 % busy, no memory traffic, 315 W of 700 W"),
    Case("data", "warning", dips(44, cpu=95), dips(43, cpu=95),
         "less than 50 % busy in 20 % of its samples, and in 100 % of these"),
    Case("data", "warning", dips(44, cpu=90), dips(44, cpu=89), "CPUs were 90 % full"),
    Case("data", "warning", waits(20, 20, 20, 20, 20), waits(20, 20, 20, 20, 19),
         "waited for data for 20 % of its time, by 5 lines"),
    Case("data", "warning", waits(30, 30, 30, 30, 30), waits(90, 90, 90, 90), "30 % of its time"),
    Case("straggler", "warning", peers({"sm": 70}, {"sm": 90}), peers({"sm": 71}, {"sm": 90}),
         "70 % busy where the middle one of its 3 peers is 90 %"),
    Case("straggler", "warning",
         peers({"sm": at(slice(80, 200), 40, 90)}, {"sm": 90}),
         peers({"sm": at(slice(80, 160), 40, 90)}, {"sm": 90}),
         "40 % busy"),
    Case("straggler", "warning", slow_lines(2), slow_lines(1),
         "rank 5 took 1.5 times as long as the middle one in 2 of 10 lines"),
    Case("straggler", "warning", slow_lines(2), both_slow(5), "rank 5 took 1.5 times"),
    Case("clock", "warning",
         peers({"pclk": 1782}, {"pclk": 1980}), peers({"pclk": 1783}, {"pclk": 1980}),
         "SM clock of 1782 MHz at work, where the middle one of its 3 peers has 1980 MHz"),
    Case("pcie", "warning",
         peers({"rxpci": 9_990}, {"rxpci": 20_000}), peers({"rxpci": 10_010}, {"rxpci": 20_000}),
         "at most 9990 MB/s to the GPU over PCIe"),
    Case("pcie", "warning",
         peers({"txpci": 10}, {"txpci": 1000}), peers({"txpci": 10}, {"txpci": 999}),
         "at most 10 MB/s from the GPU"),
    Case("unbalanced", "hint",
         peers({"fb": 56_100}, {"fb": 40_000}), peers({"fb": 55_900}, {"fb": 40_000}),
         "55 GiB in use where the middle one of its 3 peers has 39 GiB"),
    Case("thermal", "warning",
         run(gpu(throt=at(first(5), 32, 0), pclk=at(first(5), 1200, 1980))),
         run(gpu(throt=at(first(4), 32, 0))),
         "2.1 % of its busy time, at up to 60 C; SM clock 1200 instead of 1980 MHz"),
    Case("thermal", "warning", run(gpu(tviol=2, facts=OURS)), run(gpu(tviol=1, facts=OURS)),
         "heat kept the clocks down for 2.0 %"),
    Case("power", "warning",
         run(gpu(throt=at(first(3), 128, 0))), run(gpu(throt=at(first(2), 128, 0))),
         "the power brake or another slowdown by hardware for 1.2 %"),
    Case("power", "hint",
         run(gpu(throt=at(first(192, after=0), 4, 0))),
         run(gpu(throt=at(first(191, after=0), 4, 0))),
         "clocks held by its limit of 700 W for 80 % of its busy time"),
    Case("memory", "hint",
         run(gpu(fb=at(first(2), 77_700, 60_000))), run(gpu(fb=at(first(1), 77_700, 60_000))),
         "at most 76 of 78 GiB in use (97 %)"),
    Case("memory", "hint", run(gpu(fb=39_900)), run(gpu(fb=40_100)), "39 of 78 GiB in use (50 %)"),
    Case("unattributed", "warning",
         run(gpu(ofb=at(first(8), 500, 0), facts={"processes 0": "77 500 MiB"})),
         run(gpu(ofb=at(first(7), 500, 0))),
         "held up to 0.5 GiB of its memory for 2 min; on it at last: 77 500 MiB"),
    Case("unattributed", "warning", run(gpu(ofb=9000)), run(gpu(ofb=499)),
         "8.8 GiB of its memory for"),
    Case("host_memory", "warning",
         run(gpu(hmem=at(first(2), 950_100, 0))), run(gpu(hmem=at(first(2), 949_900, 0))),
         "the machine's memory was up to 95 % full"),
    Case("host_memory", "warning",
         run(gpu(hmem=at(first(2), 960_000, 0))), run(gpu(hmem=at(first(1), 960_000, 0))),
         "96 % full"),
    Case("shm", "warning", run(gpu(shm=at(first(2), 90, 5))), run(gpu(shm=at(first(2), 89, 5))),
         "/dev/shm was up to 90 % full"),
    Case("disk", "warning", run(gpu(disk=95)), run(gpu(disk=94)), "disk was up to 95 % full"),
    Case("ecc", "error", run(gpu(dbecc=at(slice(100, None), 1, 0))), run(gpu(dbecc=0)),
         "1 memory error came up that could not be corrected"),
    Case("ecc", "warning", run(gpu(dbecc=3)), run(gpu(dbecc=NAN)), "corrected, from before"),
    Case("ecc", "hint",
         run(gpu(sbecc=at(slice(100, None), 107, 7))), run(gpu(sbecc=at(slice(100, None), 106, 7))),
         "100 memory errors came up, and could be corrected"),
    Case("ecc", "error", run(gpu(), log_events=(mark("ecc", bits="double"),)),
         run(gpu(), log_events=(mark("ecc", bits="single"),)), "error that could not be corrected"),
    Case("remap", "warning", run(gpu(remap=at(slice(100, None), 3, 2))), run(gpu(remap=2)),
         "1 row of memory remapped, 3 in all"),
    Case("remap", "error", run(gpu(), log_events=(mark("remap", failed="1"),)),
         run(gpu(), log_events=(mark("back"),)), "could not be remapped"),
    Case("remap", "warning", run(gpu(), log_events=(mark("remap"),)), run(gpu()),
         "is to be remapped"),
    Case("xid", "error", run(gpu(), log_events=(mark("xid", xid="79"), mark("xid", xid="79"))),
         run(gpu(), log_events=(mark("lost"),)),
         "XID 79: the GPU has fallen off the bus (the hardware's fault), 2 times"),
    Case("lost", "error",
         run(gpu(**dict.fromkeys(("sm", "pwr", "gtemp", "fb"), at(slice(238, None), NAN, 50)))),
         run(gpu(**dict.fromkeys(("sm", "pwr", "gtemp", "fb"), at(slice(239, None), NAN, 50)))),
         "no reading in 2 of 240 samples one after the other, up to the end of the log"),
    Case("lost", "warning",
         run(gpu(**dict.fromkeys(("sm", "pwr", "gtemp", "fb"), at(first(2), NAN, 50)))),
         run(gpu(sm=NAN)),
         "then it answered again"),
    Case("gap", "hint", gap(76), gap(75), "nothing written for 1 min, where a sample is usual"),
    Case("gap", "warning", shorter(76), shorter(75), "its log ends 1 min before"),
]  # fmt: skip


def findings_of(looked_at: Run, rule: str, thresholds: Thresholds | None = None) -> list[Finding]:
    """What one rule finds."""
    return [one for one in evaluate(looked_at, thresholds) if one.rule == rule]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}-{case.severity}")
def test_a_rule_finds_what_is_over_its_threshold_and_not_what_is_below(case: Case) -> None:
    """A finding has its place, its time and its evidence in numbers; the other run has none."""
    (found,) = findings_of(case.true, case.rule)
    assert (found.severity, findings_of(case.false, case.rule)) == (case.severity, [])
    assert case.words in found.evidence
    assert found.suggestion
    assert found.begin_s is not None
    assert found.end_s is not None
    assert BEGIN_S <= found.begin_s <= found.end_s <= BEGIN_S + 2 * 3600


def test_every_rule_has_both_cases() -> None:
    """A new rule must not go untested, nor a column that a rule forgot to name."""
    afterwards = [rule for rule in engine.rules() if rule.scope != "live"]
    assert {case.rule for case in CASES} == {rule.name for rule in afterwards}
    used = {name for case in CASES for one in case.true.gpus for name in one.values}
    assert used <= engine.columns()


def test_where_and_when() -> None:
    """The stretch itself is named, and the GPU; a node's finding has no GPU."""
    (idle,) = findings_of(run(gpu(3, sm=at(first(40), 0, 95), disk=99)), "idle")
    assert (idle.host, idle.gpu, idle.job) == ("n1", 3, "7")
    assert (idle.begin_s, idle.end_s) == (BEGIN_S + 99 * STEP_S, BEGIN_S + 139 * STEP_S)
    (disk,) = findings_of(run(gpu(0, disk=99), gpu(1, disk=99)), "disk")
    assert (disk.host, disk.gpu) == ("n1", None)
    (odd,) = findings_of(peers({"sm": 40}, {"sm": 90}), "straggler")
    assert (odd.gpu, odd.begin_s, odd.end_s) == (2, BEGIN_S, BEGIN_S + 239 * STEP_S)
    (slow,) = findings_of(slow_lines(10), "straggler")
    assert (slow.host, slow.gpu) == ("n2", 1)


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


def nodes(num_gpus: int, odd: dict[str, Any], other: dict[str, Any]) -> Run:
    """Two nodes, the second of which differs as a whole."""
    placed = [(host, i) for host in ("n1", "n2") for i in range(num_gpus)]
    return run(*(gpu(i, host, **(odd if host == "n2" else other)) for host, i in placed))


@pytest.mark.parametrize("num_gpus", [1, 2, 8])
@pytest.mark.parametrize(
    ("rule", "slow", "healthy", "quick", "words"),
    [
        ("straggler", {"sm": 55}, {"sm": 76}, {"sm": 95}, "at most 55 % busy where those of"),
        ("clock", {"pclk": 1000}, {"pclk": 1275}, {"pclk": 1400}, "at 1000 MHz or less at work"),
    ],
)
def test_one_of_two_nodes_is_slow(  # noqa: PLR0913, PLR0917 - a row of the table
    num_gpus: int,
    rule: str,
    slow: dict[str, Any],
    healthy: dict[str, Any],
    quick: dict[str, Any],
    words: str,
) -> None:
    """Half against half is no outlier: the node is named, and only where all its GPUs differ."""
    (found,) = findings_of(nodes(num_gpus, slow, quick), rule)
    assert (found.host, found.gpu) == ("n2", None)
    assert words in found.evidence
    assert not findings_of(nodes(num_gpus, healthy, quick), rule)
    late = {name: at(slice(80, 150), value, quick[name]) for name, value in slow.items()}
    assert not findings_of(nodes(num_gpus, late, quick), rule)


def test_a_node_without_a_log_is_told() -> None:
    """It had ranks; where no node has a log, nobody watched, and that was asked for."""
    ups = tuple({"event": "rank_up", "rank": i, "node": f"n{i + 1}.here"} for i in range(2))
    (found,) = findings_of(run(gpu(host="n1"), events=ups), "gap")
    assert (found.host, found.severity) == ("n2", "warning")
    assert not findings_of(run(gpu(host="n1"), gpu(host="n2"), events=ups), "gap")
    assert not findings_of(run(events=ups), "gap")


def test_without_gpus_none_is_blamed() -> None:
    """A slow rank of a node that has none is told of as the node's."""
    slow = slow_lines(10)
    (found,) = findings_of(
        run(gpu(None, "n2"), metrics=slow.metrics, events=slow.events), "straggler"
    )
    assert (found.host, found.gpu) == ("n2", None)


def test_every_start_has_its_start_up() -> None:
    """Three requeues of four idle minutes each are no reason to ask for fewer GPUs."""
    begins = range(0, NUM_SAMPLES, 60)
    sm = at([i for begin in begins for i in range(begin, begin + 16)], 0, 95)
    start = np.arange(NUM_SAMPLES) // 60
    assert findings_of(run(gpu(sm=sm)), "idle")
    assert not findings_of(run(replace(gpu(sm=sm), start=start)), "idle")
    clock_s = BEGIN_S + STEP_S * np.arange(NUM_SAMPLES) + 3600 * start
    assert not findings_of(run(gpu(sm=sm, time_s=clock_s)), "idle")


def test_the_end_counts_and_not_only_the_longest() -> None:
    """A GPU that answered once and is silent at the end is lost; so is one that hangs again."""
    power_w = at(slice(20, 90), NAN, 300)
    power_w[200:] = NAN
    silent = {"pwr": power_w, "gtemp": power_w, "fb": power_w, "sm": power_w}
    (lost,) = findings_of(run(gpu(**silent)), "lost")
    assert lost.severity == "error"
    assert lost.evidence.startswith("no reading in 40 of 240 samples one after the other")
    assert lost.evidence.endswith("up to the end of the log (and 1 more time)")
    memory = at(slice(20, 90), 0, 40)
    memory[200:] = 0
    watts = at(slice(20, 90), 300, 600)
    watts[200:] = 300
    (hung,) = findings_of(run(gpu(sm=100, mem=memory, pwr=watts)), "hung")
    assert hung.severity == "error"
    assert "10 min, up to the end of the log (and 1 more time):" in hung.evidence


def test_peers_are_of_one_job_and_one_kind() -> None:
    """A slower kind of GPU, another job and too few peers are nothing to compare with."""
    slow, fast = {"sm": 40}, {"sm": 90}
    kinds = [gpu(i, **fast) for i in range(3)]
    other_kind = gpu(3, facts={"gpu 3": "GPU-9 NVIDIA L4"}, **slow)
    assert not findings_of(run(*kinds, other_kind), "straggler")
    assert not findings_of(run(*kinds, gpu(3, job="8", **slow)), "straggler")
    assert not findings_of(run(gpu(0, **fast), gpu(1, **slow)), "straggler")
    assert findings_of(run(gpu(0, **fast), gpu(1, **fast), gpu(2, **slow)), "straggler")
    assert not findings_of(run(*kinds, gpu(3, sm=0)), "straggler")  # it idles, and that is told


def test_peers_that_differ_anyway_have_no_straggler() -> None:
    """One has to differ by more than the others do among themselves."""
    rates = (50, 60, 70, 80, 90, 95, 40)
    assert not findings_of(run(*(gpu(i, sm=rate) for i, rate in enumerate(rates))), "straggler")


def test_without_times_peers_are_compared_all_the_same() -> None:
    """Rows of dmon without -o: the whole log is one stretch, and nobody knows when."""
    nothing = np.full(NUM_SAMPLES, np.nan)
    looked_at = run(*(gpu(i, sm=40 if i == 2 else 90, time_s=nothing) for i in range(4)))
    (found,) = evaluate(looked_at)
    assert (found.rule, found.begin_s, found.end_s) == ("straggler", None, None)


def test_a_slow_rank_is_where_the_log_saw_it() -> None:
    """And where no log tells of ranks, on the GPU of its local rank."""
    lines, events = slow_lines(10).metrics, ({"rank": 5, "local_rank": 1},)
    placed = [gpu(i, host="n2", rank=rank) for i, rank in enumerate((4, 6, 7, 5))]
    (found,) = findings_of(run(*placed, metrics=lines, events=events), "straggler")
    assert (found.host, found.gpu) == ("n2", 3)
    (found,) = findings_of(run(gpu(host="n2"), metrics=lines, events=events), "straggler")
    assert found.gpu == 1


def test_dmon_tells_heat_as_a_flag() -> None:
    """Its `tviol` is 0 or 1 where ours is a share of the time."""
    theirs = run(gpu(tviol=at(first(5), 1, 0)))
    ours = run(gpu(tviol=at(first(5), 1, 0), facts=OURS))
    assert [one.evidence[:45] for one in findings_of(theirs, "thermal")] == [
        "heat kept the clocks down for 2.1 % of its bu"
    ]
    assert not findings_of(ours, "thermal")


@pytest.mark.parametrize(
    ("bits", "rule"),
    [(32, "thermal"), (64, "thermal"), (8 + 64, "thermal"), (8, "power"), (128, "power")],
)
def test_what_keeps_clocks_down_is_told_apart(bits: int, rule: str) -> None:
    """A slowdown by hardware is the power's business unless heat is told with it."""
    found = evaluate(run(gpu(throt=at(first(60), bits, 0))))
    assert [(one.rule, one.severity) for one in found] == [(rule, "warning")]


def test_only_full_cpus_while_it_works_speak_of_starving() -> None:
    """How full they were before the work began says nothing of it."""
    active = at(slice(None, 100), 0, 95)
    active[100::3] = 20
    looked_at = run(gpu(sm=active, cpu=at(slice(None, 100), 5, 99)))
    (found,) = findings_of(looked_at, "data")
    assert "in 100 % of these" in found.evidence


def test_an_idle_gpus_empty_memory_is_no_hint_to_a_larger_batch() -> None:
    """It never worked."""
    assert [one.rule for one in evaluate(run(gpu(sm=0, fb=500)))] == ["idle"]


def test_a_gap_between_two_starts_is_none() -> None:
    """The job was at rest, by its own word."""
    start = datetime.fromtimestamp(BEGIN_S + 100 * STEP_S + 200, UTC).isoformat()
    looked_at = gap(400)
    resting = Run("made", looked_at.gpus, events=({"event": "start", "time": start},))
    assert findings_of(looked_at, "gap")
    assert not findings_of(resting, "gap")


@pytest.mark.parametrize(
    ("number", "severity", "words", "suggestion"),
    [
        ("31", "error", "an address that is not mapped (the program's fault)", "compute-sanitizer"),
        ("48", "error", "double bit) (the hardware's fault)", "exclude the node"),
        ("157", "warning", "could not be retired (the hardware's fault)", "exclude the node"),
        ("45", "hint", "look for what came before (no fault)", "nothing to do"),
        ("39", "warning", "error in a copy engine (the driver's fault)", "start the program again"),
        ("99999", "warning", "not in NVIDIA's catalogue", "start the program again"),
        ("x", "warning", "not in NVIDIA's catalogue", "start the program again"),
    ],
)
def test_whose_fault_an_xid_is(number: str, severity: str, words: str, suggestion: str) -> None:
    """The program's, the hardware's, the driver's or nobody's, by NVIDIA's catalogue."""
    (found,) = evaluate(run(gpu(), log_events=(mark("xid", xid=number),)))
    assert (found.rule, found.severity, found.about) == ("xid", severity, number)
    assert words in found.evidence
    assert suggestion in found.suggestion


def test_what_a_counter_tells_an_event_does_not_tell_again() -> None:
    """The recorder writes both: one finding is enough."""
    events = (mark("ecc", bits="double"), mark("remap"))
    counted = run(gpu(dbecc=at(first(9), 1, 0), remap=at(first(9), 1, 0)), log_events=events)
    assert [one.rule for one in evaluate(counted)] == ["ecc", "remap"]


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
