"""Rules on what keeps clocks down: just above each threshold and just below."""

import pytest

from monitor.analysis.engine import evaluate
from tests.monitor.analysis.rule_cases import Case, findings_of
from tests.monitor.made_runs import at, first, gpu, run

OURS = {"interval_s": "15"}


CASES = [
    Case("thermal", "warning",
         run(gpu(throt=at(first(5), 32, 0), pclk=at(first(5), 1200, 1980))),
         run(gpu(throt=at(first(4), 32, 0))),
         "2.1 % of its busy time, at up to 60 C; SM clock 1200 instead of 1980 MHz"),
    Case("thermal", "warning", run(gpu(tviol=2, facts=OURS)), run(gpu(tviol=1, facts=OURS)),
         "heat kept the clocks down for 2.0 %"),
    Case("thermal", "warning",
         run(gpu(tviol=0, throt=at(first(5), 64, 0), facts=OURS)),
         run(gpu(tviol=at(first(5), 1, 0), throt=at(first(5), 64, 0), facts=OURS)),
         "heat kept the clocks down for 2.1 %"),
    Case("power", "warning",
         run(gpu(throt=at(first(3), 128, 0))), run(gpu(throt=at(first(2), 128, 0))),
         "the power brake or another slowdown by hardware for 1.2 %"),
    Case("power", "hint",
         run(gpu(throt=at(first(192, after=0), 4, 0))),
         run(gpu(throt=at(first(191, after=0), 4, 0))),
         "clocks held by its limit of 700 W for 80 % of its busy time"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_threshold(case: Case) -> None:
    """What is just over it is found, with place, time and numbers; what is just below is not."""
    case.check()


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
def test_what_keeps_clocks_down_is_distinguished(bits: int, rule: str) -> None:
    """A slowdown by hardware is the power's business unless heat is reported with it."""
    found = evaluate(run(gpu(throt=at(first(60), bits, 0))))
    assert [(one.rule, one.severity) for one in found] == [(rule, "warning")]
