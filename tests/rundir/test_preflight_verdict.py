"""The verdict on nodes: every check of the table with a true and a false case."""

import json
import re
from pathlib import Path

import pytest

from rundir.nodes import BadNode
from rundir.preflight import limits
from rundir.preflight.limits import TABLE, Check
from rundir.preflight.pairs import Measured
from rundir.preflight.verdict import Reading, Report, Value, compose, from_event, summary

NODES = ["gpu1", "gpu2", "gpu3"]
DOCS = Path(__file__).resolve().parents[2] / "docs"
NOT_READ = ("whole_s", "stage_s", "pair_gbit_per_s", "missing", "incomplete")
"""Time limits, and what is found otherwise: tested below."""
READ = [check for check in TABLE if check.name not in NOT_READ]


def good(check: Check) -> Value:
    """A reading within the limit."""
    return (
        "1.2" if check.how == limits.SAME else check.limit if check.how != limits.SHARE else 100.0
    )


def bad(check: Check) -> Value:
    """A reading beyond it, of one node where the others are good."""
    changes = {limits.AT_MOST: 1.0, limits.AT_LEAST: -1.0, limits.APART: 1000.0}
    if check.how == limits.SAME:
        return "1.3"
    return 100 * check.limit - 1 if check.how == limits.SHARE else check.limit + changes[check.how]


def reports(check: Check, *values: Value) -> list[Report]:
    """One reading of a check on each node."""
    named = zip(NODES, values, strict=False)
    return [Report(node, "monitor", (Reading(check.name, value, "it"),)) for node, value in named]


@pytest.mark.parametrize("check", READ, ids=lambda check: check.name)
def test_a_reading_beyond_its_limit_names_the_node(check: Check) -> None:
    """Within it, nothing is found; a note is no reason to leave the node out."""
    fine = good(check)
    assert not compose(reports(check, fine, fine, fine), NODES).findings
    found = compose(reports(check, fine, bad(check), fine), NODES)
    assert [one.node for one in found.findings] == ["gpu2"]
    assert [one.node for one in found.bad] == ([] if check.is_note else ["gpu2"])
    assert check.name in found.table()


def test_what_most_nodes_share_is_no_nodes_fault() -> None:
    """A full /dev/shm everywhere is noted; broken hardware counts wherever it is."""
    checks = {check.name: check for check in TABLE}
    full = compose(reports(checks["shm_mib"], 1.0, 1.0, 1.0), NODES)
    assert len(full.findings) == 3
    assert not full.bad
    assert len(compose(reports(checks["ecc_pending"], 1.0, 1.0, 1.0), NODES).bad) == 3
    assert [one.node for one in compose(reports(checks["shm_mib"], 1.0, 99.0), NODES[:2]).bad] == [
        "gpu1"
    ]


def test_who_does_not_reach_rank_0_is_bad_unless_nobody_does() -> None:
    """Then it is rank 0's node, which reports no such reading; of two nodes none is blamed."""
    (check,) = (check for check in TABLE if check.name == "unreached")
    for values, bad in (((0.0, 1.0), ["gpu3"]), ((1.0, 1.0), []), ((1.0,), [])):
        named = [
            Report(node, "trainer", (Reading("unreached", value),))
            for node, value in zip(NODES[1:], values, strict=False)
        ]
        first = Report("gpu1", "trainer", ())
        found = compose([first, *named], NODES[: 1 + len(values)])
        assert [one.node for one in found.bad] == bad
        assert all(one.check == check for one in found.findings)


def test_of_two_versions_none_is_the_wrong_one() -> None:
    """Two nodes that differ are noted."""
    (check,) = (check for check in TABLE if check.name == "nccl")
    found = compose(reports(check, "2.27.1", "2.28.0"), NODES[:2])
    assert [one.is_bad for one in found.findings] == [False]


def test_a_gpu_is_compared_with_those_beside_it_where_there_is_one_node() -> None:
    """By hand, on one node."""
    readings = tuple(Reading("tflops", 600.0 - 400 * (at == 3), f"GPU {at}") for at in range(8))
    found = compose([Report("gpu1", "trainer", readings)], ["gpu1"])
    assert [one.what for one in found.findings] == ["GPU 3"]


def test_a_node_that_reports_nothing_is_bad() -> None:
    """If others report; a part that no node reports could not run here."""
    found = compose(reports(READ[0], good(READ[0])), NODES[:2])
    (named,) = found.bad
    assert (named.node, named.source) == ("gpu2", "preflight")
    assert named.reason == "no report from the node (missing)"
    assert compose([], NODES).bad == []


def test_a_node_that_lacks_a_part_is_noted() -> None:
    """A monitor that could not start there is no reason to leave the node out."""
    whole = [Report("gpu1", part, ()) for part in ("monitor", "trainer")]
    found = compose([*whole, Report("gpu2", "trainer", ())], NODES[:2])
    assert not found.bad
    assert [(one.node, one.what) for one in found.findings] == [("gpu2", "monitor")]


def test_a_slow_node_is_found_by_its_pairs() -> None:
    """With its partner as a proof; a lone slow pair names both, and leaves none out."""
    speeds = {("gpu1", "gpu2"): 10.0, ("gpu3", "gpu4"): 100.0, ("gpu1", "gpu3"): 99.0}
    measured = [Measured(*pair, speed) for pair, speed in speeds.items()]
    measured.append(Measured("gpu2", "gpu4", None))
    others = [Report(node, "trainer", ()) for node in ("gpu2", "gpu3", "gpu4")]
    found = compose([Report("gpu1", "trainer", (), tuple(measured)), *others], [*NODES, "gpu4"])
    assert found.bad == [BadNode("gpu2", found.findings[0].text, "preflight")]
    assert "with gpu4" in found.findings[0].text
    lone = Report("gpu1", "trainer", (), (Measured("gpu1", "gpu2", None),))
    alone = compose([lone, others[0]], NODES[:2])
    assert [(one.node, one.is_bad) for one in alone.findings] == [("gpu1", False), ("gpu2", False)]
    said = "all-reduce of two nodes: failed, as did every pair (pair_gbit_per_s)"
    assert alone.findings[0].text.endswith(said)


def test_a_report_survives_its_event() -> None:
    """As JSON has it; a damaged one is none."""
    report = Report(
        "gpu1", "trainer", (Reading("torch", "2.13"),), (Measured("gpu1", "gpu2", None),)
    )
    event = json.loads(json.dumps(report.to_event()))
    assert from_event(event) == report
    for damaged in ({}, {**event, "readings": [["x"]]}, {**event, "measured": 3}):
        assert from_event(damaged) is None


def test_one_line_says_it_all() -> None:
    """Where all is fine, and where it is not."""
    assert summary(compose([], NODES), 6.21) == "preflight: 3 nodes fine (6.2 s)"
    (check,) = (check for check in TABLE if check.name == "failed")
    found = compose(reports(check, 0.0, 1.0, 0.0), NODES)
    assert summary(found, 6.21) == "preflight: 3 nodes, bad: gpu2 (6.2 s)"


def test_a_site_sets_limits_of_its_own() -> None:
    """By name; `off` leaves a check out; the rest stays."""
    changed = {check.name: check for check in limits.parse("tflops=0.5, clock_s=off")}
    assert changed["tflops"].limit == 0.5
    assert "clock_s" not in changed
    assert len(changed) == len(TABLE) - 1
    assert limits.parse("") == TABLE


@pytest.mark.parametrize("text", ["tflop=1", "tflops", "tflops=", "tflops=-1", "tflops=nan"])
def test_a_limit_that_is_none_is_refused(text: str) -> None:
    """With the valid names, or the rule."""
    with pytest.raises(ValueError, match="DDP_PREFLIGHT_LIMITS") as raised:
        limits.parse(text)
    rule, _found, remedy = raised.value.args
    assert rule.startswith("DDP_PREFLIGHT_LIMITS must")
    assert "tflops" in rule + remedy


def test_the_table_is_documented() -> None:
    """docs/preflight.md has each check with its limit and what it suspects."""
    text = (DOCS / "preflight.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \| ([^|]*) \| (\w+)", text, re.MULTILINE)
    assert rows == [(c.name, c.meaning, shown(c), c.suspects) for c in TABLE]


def shown(check: Check) -> str:
    """A limit as the page has it."""
    unit = f" {check.unit}" if check.unit else ""
    words = {
        limits.AT_MOST: f"at most {check.limit:g}{unit}",
        limits.AT_LEAST: f"at least {check.limit:g}{unit}",
        limits.SHARE: f"{check.limit:g} of the others",
        limits.APART: f"{check.limit:g}{unit} from the others",
        limits.SAME: "the same on all",
    }
    return words[check.how]
