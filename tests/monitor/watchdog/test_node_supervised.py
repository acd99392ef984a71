"""Watchdogs of nodes under a supervisor: they report, and it decides as long as it is there."""

from rundir.hang.nodes import ASK_S, COLLECT_S
from tests.monitor.watchdog.stub_nodes import LIMIT_S, nodes


def test_a_supervisor_decides_and_acts_and_the_nodes_only_report() -> None:
    """They read nothing of the shared file system, as long as it is not silent for long."""
    for number in (1, 2):
        world, made = nodes(number, is_supervised=True)
        world.passes(LIMIT_S + COLLECT_S)
        assert {event["node"] for event in world.of("hang_report")} == {n.name for n in made}
        for _ in range(20):
            for node in made:
                node.dog.ask()
            world.passes(ASK_S)
        assert not world.of("verdict")
        assert not any(node.num_received or node.ended for node in made)


def test_a_node_that_works_reports_when_it_is_asked() -> None:
    """At its next poll, where its ranks are; and for a while, in which it may be asked again."""
    world, made = nodes(2, is_supervised=True)
    made[0].heartbeats(0, 1, phase="agree", collective=22)
    for asks in (False, True):
        for step in range(80):
            made[1].heartbeats(2, 3, phase="validate", collective=21, step=step)
            if asks and not step % 4:
                made[1].dog.ask()
            world.passes(5)
        reports = [event for event in world.of("hang_report") if event["node"] == "n1"]
        assert bool(reports) is asks
    assert not any(event["suspicious"] for event in reports)
    assert len(reports) < 90
    for step in range(80):
        made[1].heartbeats(2, 3, phase="validate", collective=21, step=step)
        world.passes(5)
    after = [event for event in world.of("hang_report") if event["node"] == "n1"]
    assert len(after) - len(reports) <= 2 * ASK_S / 5 + 1


def test_a_supervisor_that_says_nothing_is_not_waited_for_forever() -> None:
    """It is stopped, or the reports do not reach it."""
    world, made = nodes(2, is_supervised=True)
    world.passes(LIMIT_S + 40)
    assert not world.of("verdict")
    world.passes(20)
    assert world.verdict()["kind"] == "hung"
    assert all(node.ended for node in made)


def test_that_all_is_well_again_is_reported_to_the_supervisor() -> None:
    """Also of a node alone: else the report would grow old there."""
    world, (node,) = nodes(1, is_supervised=True)
    node.heartbeats(0, collective=21)
    world.passes(LIMIT_S - 5)
    node.heartbeats(0, collective=22)
    world.passes(12)
    node.heartbeats(1, collective=22)
    world.passes(10)
    reports = world.of("hang_report")
    assert [report["suspicious"] for report in reports] == [True, False]
