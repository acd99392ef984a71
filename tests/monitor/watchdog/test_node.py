"""Watchdogs of several nodes without a supervisor: they report, decide, and end their ranks."""

import pytest

from rundir.hang.nodes import COLLECT_S
from tests.monitor.watchdog.stub_nodes import LIMIT_S, nodes


def test_nothing_happens_while_heartbeats_advance() -> None:
    """Nothing reported, no stack taken, no rank ended."""
    world, (node,) = nodes(1)
    for step in range(20):
        world.passes(100)
        node.heartbeats(0, 1, step=step)
    assert not world.of("hang_report")
    assert (node.num_stacks, node.ended) == (0, False)


def test_on_one_node_it_decides_at_once() -> None:
    """Suspicion, stacks, report, verdict, end: all within one poll."""
    world, (node,) = nodes(1)
    node.heartbeats(0, collective=21)
    world.passes(295)
    assert not world.events[2:]
    world.passes(11)
    (report,) = world.of("hang_report")
    assert [rank["top"] for rank in report["ranks"]] == ["f.py:0 in f", "f.py:1 in f"]
    assert report["traces"] == ["debug/nccl-trace-rank-0"]
    assert (world.verdict()["rank"], world.verdict()["kind"]) == (1, "hung")
    assert node.messages == [world.verdict()["text"]]
    assert node.ended
    world.passes(1000)
    assert len(world.of("verdict")) == 1


def test_a_rank_that_goes_on_in_time_trips_nothing() -> None:
    """Stopped for 20 s, or for 299."""
    world, (node,) = nodes(1)
    for pause_s in (20, 299):
        world.passes(pause_s)
        node.heartbeats(0, 1)
    assert not world.of("hang_report")


def test_all_nodes_report_and_all_end() -> None:
    """Without a supervisor node rank 0 decides first; the others read it, and end their ranks."""
    world, made = nodes(3)
    made[1].heartbeats(2, step=10, collective=19, phase="forward")
    world.passes(315)
    assert {event["node"] for event in world.of("hang_report")} == {"n0", "n1", "n2"}
    assert (world.verdict()["rank"], world.verdict()["node"]) == (2, "n1")
    assert all(node.ended for node in made)
    assert all(node.messages == [world.verdict()["text"]] for node in made)


@pytest.mark.slow
def test_a_node_that_is_alive_and_working_prevents_a_verdict() -> None:
    """Rank 0 validates for an hour while the others wait for it; then it goes on."""
    world, made = nodes(2)
    made[0].heartbeats(1, phase="agree", collective=22)
    made[1].heartbeats(2, 3, phase="agree", collective=22)
    for _ in range(36):
        made[0].heartbeats(0, phase="validate", collective=21)
        world.passes(100)
    assert world.of("hang_report")
    assert not world.of("verdict")
    made[0].heartbeats(0, 1, step=11, collective=23)
    made[1].heartbeats(2, 3, step=11, collective=23)
    world.passes(20)
    reports = {event["node"]: event for event in world.of("hang_report")}
    assert not any(rank["hung"] for event in reports.values() for rank in event["ranks"])
    num_events = len(world.events)
    for _ in range(5):
        made[0].heartbeats(0, 1)
        made[1].heartbeats(2, 3)
        world.passes(100)
    assert len(world.events) == num_events


def test_then_it_hangs_after_all() -> None:
    """The same rank 0, once it beats no more."""
    world, made = nodes(2)
    made[0].heartbeats(1, phase="agree", collective=22)
    made[1].heartbeats(2, 3, phase="agree", collective=22)
    for _ in range(5):
        made[0].heartbeats(0, phase="validate", collective=21)
        world.passes(100)
    world.passes(300)
    assert world.verdict()["rank"] == 0
    assert all(node.ended for node in made)


def test_a_node_that_says_nothing_is_lost() -> None:
    """Its watcher and its ranks are gone; the leader waits a while, then names it."""
    world, made = nodes(3)
    made[2].alive = False
    world.passes(LIMIT_S + COLLECT_S - 5)
    assert not world.of("verdict")
    world.passes(15)
    assert (world.verdict()["kind"], world.verdict()["node"]) == ("network", "n2")
    assert made[0].ended
    assert made[1].ended


def test_a_node_without_reports_calls_no_node_lost() -> None:
    """The leader's files hang: others may have reported all there is."""
    world, made = nodes(3)
    made[2].alive = False
    made[0].stuck = True
    world.passes(LIMIT_S + COLLECT_S - 5)
    assert not world.of("verdict")
    world.passes(15)
    assert world.verdict()["kind"] != "network"
    assert "n2" not in world.verdict()["text"]


def test_without_a_leader_the_next_in_line_decides() -> None:
    """Node rank 0 is gone: after a while the next one leads, and only that one."""
    world, made = nodes(3)
    made[0].alive = False
    world.passes(LIMIT_S + 60)
    assert world.verdict()["node"] == "n0"
    assert [node.ended for node in made] == [False, True, True]


def test_a_watcher_that_ended_is_not_waited_for() -> None:
    """Its ranks have finished; who still hangs at the end is judged without it."""
    world, made = nodes(2)
    made[0].report("last_beats", node="n0", node_rank=0, ranks={})
    made[0].alive = False
    made[1].heartbeats(2, 3, phase="end", collective=30)
    world.passes(LIMIT_S + 10)
    assert world.verdict()["kind"] == "hung"
    assert made[1].ended


def test_a_watchers_report_before_its_end_is_void() -> None:
    """It reported that its ranks hang, then they ended: no node waits for them any more."""
    world, made = nodes(2)
    made[0].heartbeats(0, 1, phase="save", collective=21, limit_s=10 * LIMIT_S)
    world.passes(LIMIT_S - 5)
    made[0].heartbeats(0, 1, phase="save", collective=21)
    world.passes(15)
    assert any(rank["hung"] for event in world.of("hang_report") for rank in event["ranks"])
    made[1].report("last_beats", node="n1", node_rank=1, ranks={})
    made[1].alive = False
    world.passes(80)
    assert not world.of("verdict")


@pytest.mark.parametrize("number", [0, 1])
def test_a_run_directory_that_hangs_stops_no_other(number: int) -> None:
    """Who can neither tell nor hear ends its own ranks all the same."""
    world, made = nodes(2)
    for node in made:
        node.deaf = True
    world.passes(LIMIT_S + 60)
    assert made[number].ended
    assert not world.of("verdict")


def test_a_node_that_cannot_reach_the_master_is_named() -> None:
    """Each node tries for itself."""
    world, made = nodes(2)
    made[1].reaches = False
    world.passes(LIMIT_S + 10)
    assert (world.verdict()["kind"], world.verdict()["node"]) == ("network", "n1")


def test_the_word_of_a_dead_watcher_grows_old() -> None:
    """It reported that its ranks hang, then it was killed, and they went on."""
    world, made = nodes(2)
    for node, numbers in zip(made, ((0, 1), (2, 3)), strict=True):
        node.heartbeats(*numbers, step=50)
    made[0].heartbeats(0, phase="validate", collective=19)
    world.passes(150)
    made[0].heartbeats(0, phase="validate", collective=19)
    world.passes(160)
    assert any(rank["hung"] for event in world.of("hang_report") for rank in event["ranks"])
    made[1].alive = False
    for step in range(51, 90):
        made[0].heartbeats(0, 1, step=step, collective=step)
        world.passes(10)
    world.passes(250)
    assert not world.of("verdict")


def test_another_attempts_words_mean_nothing() -> None:
    """The log holds all attempts of the run."""
    world, made = nodes(2)
    world.events += [{"event": "verdict", "attempt": 2, "text": "x"}]
    world.passes(30)
    assert not made[0].ended


@pytest.mark.slow
def test_reports_do_not_fill_the_log() -> None:
    """An hour of waiting costs each node a few lines a minute."""
    world, made = nodes(2)
    made[1].heartbeats(2, 3, phase="agree", collective=22)
    made[0].heartbeats(1, phase="agree", collective=22)
    for _ in range(360):
        made[0].heartbeats(0, phase="validate", collective=21)
        world.passes(10)
    assert len(world.of("hang_report")) < 2 * 2.5 * 60
    assert made[1].num_stacks == 2
