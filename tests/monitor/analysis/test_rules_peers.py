"""Rules on a GPU beside the others of its job: just above each threshold and just below."""

from typing import Any

import numpy as np
import pytest

from monitor.analysis.engine import evaluate
from monitor.logs.series import Run
from tests.monitor.analysis.rule_cases import Case, findings_of, line
from tests.monitor.made_runs import NUM_SAMPLES, at, first, gpu, run

TOP = {"top_sm_mhz 0": "1980"}


def peers(odd: dict[str, Any], others: dict[str, Any]) -> Run:
    """Four GPUs of a node, the third of which differs."""
    return run(*(gpu(i, **(odd if i == 2 else others)) for i in range(4)))


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


def test_a_ratio_that_is_no_number_is_left_out() -> None:
    """As JSON of others may have it."""
    odd = {"slow_ranks": [{"rank": 5, "node": "n2", "ratio": float("inf")}]}
    lines = tuple(line(i, **odd) for i in range(10))
    assert not findings_of(run(metrics=lines, events=({"rank": 5, "local_rank": 1},)), "straggler")


CASES = [
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
    Case("clock", "warning",
         peers({"pclk": 1500, "pwr": 460}, {"pclk": 1980, "pwr": 420}),
         peers({"pclk": 1500, "pwr": 690}, {"pclk": 1980, "pwr": 420}),
         "SM clock of 1500 MHz at work"),
    Case("clock", "hint",
         run(gpu(pclk=1485, throt=0, facts=TOP)), run(gpu(pclk=1486, throt=0, facts=TOP)),
         "SM clock of 1485 MHz at work, where it could have 1980 MHz, and neither heat nor power"),
    Case("clock", "hint",
         run(gpu(pclk=1200, throt=at(slice(121, None), 4, 0), facts=TOP)),
         run(gpu(pclk=1200, throt=at(slice(120, None), 4, 0), facts=TOP)),
         "SM clock of 1200 MHz at work"),
    Case("clock", "hint",
         run(gpu(pclk=1200, throt=0, sm=at(first(20), 95, 0), facts=TOP)),
         run(gpu(pclk=1200, throt=0, sm=at(first(19), 95, 0), facts=TOP)),
         "SM clock of 1200 MHz at work"),
    Case("pcie", "warning",
         peers({"rxpci": 9_990}, {"rxpci": 20_000}), peers({"rxpci": 10_010}, {"rxpci": 20_000}),
         "at most 9990 MB/s to the GPU over PCIe"),
    Case("pcie", "warning",
         peers({"txpci": 10}, {"txpci": 1000}), peers({"txpci": 10}, {"txpci": 999}),
         "at most 10 MB/s from the GPU"),
    Case("pcie", "warning",
         peers({"rxpci": 0}, {"rxpci": 20_000}), peers({"rxpci": 0, "sm": 0}, {"rxpci": 20_000}),
         "at most 0 MB/s to the GPU over PCIe"),
    Case("unbalanced", "hint",
         peers({"fb": 56_100}, {"fb": 40_000}), peers({"fb": 55_900}, {"fb": 40_000}),
         "55 GiB in use where the middle one of its 3 peers has 39 GiB"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_threshold(case: Case) -> None:
    """What is just over it is found, with place, time and numbers; what is just below is not."""
    case.check()


def test_clocks_held_down_alike_are_one_finding() -> None:
    """The one whose clock is lower still is named; without a highest clock there is no rule."""
    alike = [gpu(i, pclk=1200, throt=0, facts={f"top_sm_mhz {i}": "1980"}) for i in range(4)]
    assert [one.severity for one in findings_of(run(*alike), "clock")] == ["hint"] * 4
    lower = gpu(3, pclk=1000, throt=0, facts={"top_sm_mhz 3": "1980"})
    (odd,) = findings_of(run(*alike[:3], lower), "clock")
    assert (odd.gpu, odd.severity) == (3, "warning")
    assert not findings_of(run(gpu(pclk=1200, throt=0)), "clock")


@pytest.mark.parametrize(
    ("held", "rule"),
    [({"throt": 32}, "thermal"), ({"tviol": 90}, "thermal"), ({"throt": 128}, "power")],
)
def test_a_clock_that_heat_or_hardware_holds_down_is_one_finding(
    held: dict[str, Any], rule: str
) -> None:
    """It is lower than its peers', too, and that is no second cause."""
    found = evaluate(peers({"pclk": 1200, **held}, {"pclk": 1980, **dict.fromkeys(held, 0)}))
    assert [one.rule for one in found] == [rule]
    lower = peers({"pclk": 1200, "throt": at(first(5), 32, 0)}, {"pclk": 1980, "throt": 0})
    assert [one.rule for one in evaluate(lower)] == ["thermal", "clock"]


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


def test_without_gpus_none_is_blamed() -> None:
    """A slow rank of a node that has none is reported as the node's."""
    slow = slow_lines(10)
    (found,) = findings_of(
        run(gpu(None, "n2"), metrics=slow.metrics, events=slow.events), "straggler"
    )
    assert (found.host, found.gpu) == ("n2", None)


def test_peers_are_of_one_job_and_one_kind() -> None:
    """A slower kind of GPU, another job and too few peers are nothing to compare with."""
    slow, fast = {"sm": 40}, {"sm": 90}
    kinds = [gpu(i, **fast) for i in range(3)]
    other_kind = gpu(3, facts={"gpu 3": "GPU-9 NVIDIA L4"}, **slow)
    assert not findings_of(run(*kinds, other_kind), "straggler")
    assert not findings_of(run(*kinds, gpu(3, job="8", **slow)), "straggler")
    assert not findings_of(run(gpu(0, **fast), gpu(1, **slow)), "straggler")
    assert findings_of(run(gpu(0, **fast), gpu(1, **fast), gpu(2, **slow)), "straggler")
    assert not findings_of(run(*kinds, gpu(3, sm=0)), "straggler")  # it idles, and that is reported


def test_peers_that_differ_anyway_have_no_straggler() -> None:
    """One has to differ by more than the others do among themselves."""
    rates = (50, 60, 70, 80, 90, 95, 40)
    assert not findings_of(run(*(gpu(i, sm=rate) for i, rate in enumerate(rates))), "straggler")


def test_without_times_peers_are_compared_all_the_same() -> None:
    """Rows of dmon without -o: the whole log is one stretch without a time."""
    nothing = np.full(NUM_SAMPLES, np.nan)
    looked_at = run(*(gpu(i, sm=40 if i == 2 else 90, time_s=nothing) for i in range(4)))
    (found,) = evaluate(looked_at)
    assert (found.rule, found.begin_s, found.end_s) == ("straggler", None, None)


def test_a_slow_rank_is_where_the_log_saw_it() -> None:
    """And where no log has ranks, on the GPU of its local rank."""
    lines, events = slow_lines(10).metrics, ({"rank": 5, "local_rank": 1},)
    placed = [gpu(i, host="n2", rank=rank) for i, rank in enumerate((4, 6, 7, 5))]
    (found,) = findings_of(run(*placed, metrics=lines, events=events), "straggler")
    assert (found.host, found.gpu) == ("n2", 3)
    (found,) = findings_of(run(gpu(host="n2"), metrics=lines, events=events), "straggler")
    assert found.gpu == 1
