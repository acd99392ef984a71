"""Who did not arrive where: one verdict from what the nodes report."""

import json
from dataclasses import replace
from typing import Any

import pytest

from rundir.hang.reports import NodeReport, RankReport, from_event
from rundir.hang.verdict import Verdict, compose

WAIT = "torch/distributed/distributed_c10d.py:2810 in all_reduce"


def rank(number: int, **changes: Any) -> RankReport:
    """A rank that waits in the backward of step 120 with all the others."""
    reported = {
        "local_rank": number % 2,
        "gpu": f"GPU {number % 2}",
        "step": 120,
        "phase": "backward",
        "collective": 45,
        "age_s": 312.0,
        "limit_s": 300.0,
        "hung": True,
        "state": "S",
        "top": WAIT,
        "waiting": True,
    }
    return RankReport(rank=number, **{**reported, **changes})


BEHIND = {"phase": "forward", "collective": 44, "top": "my/model.py:88 in f", "waiting": False}


def nodes(*ranks: RankReport, reaches: tuple[bool | None, ...] = (True, True)) -> list[NodeReport]:
    """Two ranks a node, as many nodes as that takes."""
    return [
        NodeReport(
            node=f"n{index}",
            node_rank=index,
            ranks=ranks[2 * index : 2 * index + 2],
            reaches_master=reaches[index] if index < len(reaches) else None,
        )
        for index in range((len(ranks) + 1) // 2)
    ]


def composed(reports: list[NodeReport], lost: tuple[str, ...] = ()) -> Verdict:
    """The verdict, which there is."""
    verdict = compose(reports, lost, "n0:29500")
    assert verdict is not None
    assert "\n" not in verdict.text
    return verdict


def test_a_rank_that_is_behind_is_named() -> None:
    """Rank, node, GPU, line, step, for how long, and who waits for it where."""
    verdict = composed(nodes(rank(0), rank(1), rank(2, **BEHIND), rank(3)))
    assert (verdict.kind, verdict.rank, verdict.node, verdict.gpu) == ("hung", 2, "n1", "GPU 0")
    assert verdict.top == "my/model.py:88 in f"
    assert verdict.text == (
        "rank 2 on n1 (GPU 0) hangs at step 120 in forward, my/model.py:88 in f, for 312 s;"
        f" ranks 0, 1, 3 wait at step 120 in backward, {WAIT}"
    )


@pytest.mark.parametrize(
    ("ahead", "behind"),
    [
        (("backward", 45, 120), ("forward", 44, 120)),
        (("backward", 46, 121), ("backward", 45, 120)),
        (("save", 47, 120), ("update", 45, 120)),
        (("log", 46, 121), ("update", 45, 120)),
        (("data", 46, 121), ("agree", 46, 121)),
        (("forward", 46, 121), ("data", 46, 121)),
        (("load", 1, 0), ("start", 0, 0)),
        (("end", 99, 500), ("save", 98, 500)),
    ],
)
def test_who_is_behind(ahead: tuple[str, int, int], behind: tuple[str, int, int]) -> None:
    """By step, then by meetings, then by what follows a meeting."""

    def at(number: int, place: tuple[str, int, int]) -> RankReport:
        phase, collective, step = place
        top = None if number == 1 else WAIT
        return rank(
            number, phase=phase, collective=collective, step=step, top=top, waiting=number != 1
        )

    assert composed(nodes(at(0, ahead), at(1, behind))).rank == 1


def test_no_verdict_while_the_last_one_may_still_arrive() -> None:
    """A rank ahead of others waits for them, however long; they are within their limit."""
    slow = rank(1, **{**BEHIND, "hung": False, "age_s": 2.0})
    assert compose(nodes(rank(0), slow)) is None
    saving = rank(1, phase="agree", collective=44, hung=False, age_s=299.0)
    assert compose(nodes(rank(0), saving)) is None


def test_a_rank_that_is_behind_needs_no_other_to_hang() -> None:
    """Its peers wait in a phase that may last longer."""
    patient = rank(0, phase="save", collective=46, hung=False)
    assert composed(nodes(patient, rank(1, **BEHIND))).rank == 1


def test_a_rank_that_has_ended_is_the_launchers_business() -> None:
    """Neither hung nor waited for."""
    assert compose(nodes(rank(0, state=None))) is None
    assert composed(nodes(rank(0), rank(1, state=None, step=3))).rank == 0


def test_a_stopped_rank_is_named() -> None:
    """Also where all stand at the same place."""
    stopped = rank(3, state="T", top=None, waiting=False)
    verdict = composed(nodes(rank(0), rank(1), rank(2), stopped))
    assert (verdict.kind, verdict.rank, verdict.node) == ("stopped", 3, "n1")
    assert verdict.text.startswith(
        "rank 3 on n1 (GPU 1) is stopped by a signal (state T), for 312 s,"
        " at step 120 in backward; ranks 0, 1, 2 wait at step 120 in backward"
    )


def test_several_are_named_together() -> None:
    """With the first one's line."""
    verdict = composed(nodes(rank(0, **BEHIND), rank(1, **BEHIND), rank(2), rank(3)))
    assert verdict.text.startswith("rank 0 on n0 (GPU 0), rank 1 on n0 hang at step 120")


def test_a_node_that_cannot_reach_the_master() -> None:
    """All wait at the same place, and one node is cut off."""
    verdict = composed(nodes(rank(0), rank(1), rank(2), rank(3), reaches=(True, False)))
    assert (verdict.kind, verdict.node, verdict.rank) == ("network", "n1", 2)
    assert "n1 cannot reach n0:29500: the network is cut" in verdict.text


@pytest.mark.parametrize("reaches", [(False, False), (None, None), (True, True), (None, False)])
def test_no_node_is_cut_off_where_none_differs(reaches: tuple[bool | None, ...]) -> None:
    """A store that has ended answers no rank; that is no network."""
    verdict = composed(nodes(rank(0), rank(1), rank(2), rank(3, **BEHIND), reaches=reaches))
    assert (verdict.kind, verdict.rank) == ("hung", 3)


def test_a_node_without_a_report_is_lost() -> None:
    """Where nothing nearer explains it."""
    verdict = composed(nodes(rank(0), rank(1)), ("n7",))
    assert (verdict.kind, verdict.node, verdict.rank) == ("network", "n7", None)
    assert verdict.text.startswith("n7 gave no report: the node is down or cut off; ranks 0, 1")
    assert composed(nodes(rank(0), rank(1, **BEHIND)), ("n7",)).rank == 1


def test_ranks_in_different_collectives_are_both_named() -> None:
    """The same number of meetings, but not the same meeting."""
    log = rank(0, phase="log", top="trainer/loop.py:180 in _log")
    verdict = composed(nodes(log, rank(1, phase="validate", top="trainer/loop.py:240 in _measure")))
    assert verdict.text == (
        "ranks wait in different collectives:"
        " rank 0 on n0 (GPU 0) at step 120 in log, trainer/loop.py:180 in _log;"
        " rank 1 on n0 (GPU 1) at step 120 in validate, trainer/loop.py:240 in _measure, for 312 s"
    )


def test_a_rank_that_is_behind_in_a_collective_of_its_own() -> None:
    """It does not hang in a line of its own: it waits, too, where no rank comes."""
    own = rank(1, **{**BEHIND, "top": "c10d.py:9 in barrier, called from my.py:7", "waiting": True})
    verdict = composed(nodes(rank(0), own))
    assert verdict.text.startswith("ranks wait in different collectives: rank 1 on n0")
    assert "my.py:7" in verdict.text


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "D", "top": "kernel: nfs_wait"},
        {"top": "my/hook.py:3 in h", "waiting": False},
        {"pattern": "idle", "top": None},
    ],
    ids=["in the kernel", "in a line of its own", "with an idle GPU"],
)
def test_at_the_same_place_one_does_not_wait(changes: dict[str, Any]) -> None:
    """It has not arrived, whatever its heartbeat says."""
    verdict = composed(nodes(rank(0), rank(1), rank(2, **changes), rank(3)))
    assert (verdict.kind, verdict.rank) == ("hung", 2)


def test_all_at_the_same_place_and_different_lines() -> None:
    """Both are reported, beginning with the rarer one."""
    other = rank(2, top="torch/distributed/distributed_c10d.py:999 in barrier")
    verdict = composed(nodes(rank(0), rank(1), other, rank(3)))
    assert verdict.text.startswith("ranks hang in different places: rank 2 on n1")
    assert WAIT in verdict.text


def test_all_at_the_same_line() -> None:
    """Then that is all that is known."""
    verdict = composed(nodes(rank(0), rank(1)))
    assert verdict.rank == 0
    assert verdict.text == (
        "no rank is behind: rank 0 on n0 (GPU 0), rank 1 on n0 hang at step 120 in backward,"
        f" {WAIT}, for 312 s"
    )
    assert composed(nodes(rank(0))).text.startswith("rank 0 on n0 (GPU 0) hangs at step 120")


def test_commands_without_heartbeats() -> None:
    """No step is known: state and line are reported, or that nothing is known."""
    nothing = {"step": None, "phase": None, "collective": None, "top": None, "waiting": False}
    verdict = composed(nodes(rank(0, **nothing), rank(1, **nothing, state="T")))
    assert (verdict.kind, verdict.rank) == ("stopped", 1)
    verdict = composed(nodes(rank(0, **nothing)))
    assert verdict.text == "rank 0 on n0 (GPU 0) hangs asleep, for 312 s"
    assert compose(nodes(rank(0, **nothing), rank(1, **nothing, hung=False))) is None


def test_many_ranks_stay_one_line() -> None:
    """Eight are named, the rest counted."""
    many = nodes(*(rank(number) for number in range(64)))
    text = composed(many).text
    assert "rank 7 on n3, 56 more hang at step 120" in text
    assert len(text) < 300
    text = composed(nodes(rank(0, **BEHIND), *(rank(number) for number in range(1, 64)))).text
    assert "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 55 more wait" in text


def test_reports_travel_as_events() -> None:
    """Written, read, the same; keys of tomorrow are left alone, what is broken is nothing."""
    (report,) = nodes(rank(0), rank(1))
    event = json.loads(json.dumps({"event": "hang_report", **report.to_event()}))
    event["ranks"][0]["colour"] = "red"
    assert from_event(event) == report
    for broken in ({}, {"node": "n", "node_rank": 0, "ranks": [3]}, {"node": "n", "ranks": None}):
        assert from_event(broken) is None
    assert replace(report, node="x") != report
