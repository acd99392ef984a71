"""Watchdogs of several nodes that share a channel, in a time that goes on as the test wants."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from monitor.watchdog.node import Place, Watchdog
from monitor.watchdog.observer import Observation
from monitor.watchdog.stacks import Stack
from rundir.hang.nodes import ASK_S, COLLECT_S
from rundir.hang.reports import RankReport

LIMIT_S = 300.0


@dataclass
class World:
    """The time, and the board on which all nodes meet."""

    now_s: float = 1000.0
    events: list[dict[str, Any]] = field(default_factory=list)
    nodes: list["Node"] = field(default_factory=list)

    def of(self, name: str) -> list[dict[str, Any]]:
        """The events of one name."""
        return [event for event in self.events if event["event"] == name]

    def verdict(self) -> dict[str, Any]:
        """The one verdict."""
        (verdict,) = self.of("verdict")
        return verdict

    def passes(self, seconds: float) -> None:
        """Let every watchdog tick when it wants to."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            for node in self.nodes:
                node.tick(self.now_s)
            self.now_s += 0.25


@dataclass
class Node:
    """One node: board, hands and ranks of one watchdog."""

    world: World
    number: int
    num_nodes: int
    ranks: dict[int, RankReport] = field(default_factory=dict)
    heartbeat_s: dict[int, float] = field(default_factory=dict)
    alive: bool = True
    deaf: bool = False
    reaches: bool | None = True
    num_received: int = 0
    num_stacks: int = 0
    ended: bool = False
    messages: list[str] = field(default_factory=list)
    due_s: float = 0.0
    stuck: bool = False
    is_supervised: bool = False

    @property
    def name(self) -> str:
        """Its name."""
        return f"n{self.number}"

    def __post_init__(self) -> None:
        """Start its watchdog."""
        self.world.nodes.append(self)
        place = Place(
            node=self.name,
            node_rank=self.number,
            num_nodes=self.num_nodes,
            is_supervised=self.is_supervised,
        )
        self.dog = Watchdog(place, self, self, 5.0, lambda: self.world.now_s)

    def tick(self, now_s: float) -> None:
        """Let the watchdog look if it wants to."""
        if self.alive and now_s >= self.due_s:
            delay_s = self.dog.tick()
            self.due_s = now_s + delay_s if delay_s is not None else float("inf")

    def heartbeats(self, *numbers: int, **changes: Any) -> None:
        """Some of its ranks beat, and are somewhere new."""
        for number in numbers:
            self.heartbeat_s[number] = self.world.now_s
            self.ranks[number] = replace(
                self.ranks.get(number, RankReport(rank=number, step=0, collective=0, pid=number)),
                **{"state": "S", "phase": "backward", "limit_s": LIMIT_S, **changes},
            )

    def poll(self) -> Observation:
        """Classify by the time of the last heartbeat."""
        seen = []
        for number, rank in self.ranks.items():
            age_s = self.world.now_s - self.heartbeat_s[number]
            hung = rank.limit_s is not None and age_s > rank.limit_s
            seen.append(replace(rank, age_s=age_s, hung=hung))
        return Observation(tuple(seen), any(rank.hung for rank in seen))

    def stacks(self, ranks: Sequence[RankReport]) -> Mapping[int, Stack]:
        """Return a line for each."""
        self.num_stacks += len(ranks)
        return {rank.rank: Stack(f"f.py:{rank.rank} in f", f"s{rank.rank}") for rank in ranks}

    def traces(self) -> Sequence[str]:
        """Name one dump."""
        return ("debug/nccl-trace-rank-0",)

    def reaches_master(self) -> bool | None:
        """Whatever the test says."""
        return self.reaches

    def end_ranks(self) -> None:
        """Remember it."""
        self.ended = True

    def emit(self, message: str) -> None:
        """Remember it."""
        self.messages.append(message)

    def report(self, event: str, **keys: object) -> None:
        """Write on the board, as JSON."""
        if not self.deaf:
            line = {"event": event, "attempt": 1, **keys}
            self.world.events.append(json.loads(json.dumps(line)))

    def receive(self) -> list[dict[str, Any]]:
        """Read on."""
        if self.deaf:
            return []
        received = self.world.events[self.num_received :]
        self.num_received = len(self.world.events)
        return received

    @property
    def is_stuck(self) -> bool:
        """Whether its files hang."""
        return self.stuck


def nodes(number: int, *, is_supervised: bool = False) -> tuple[World, list[Node]]:
    """Two ranks a node; all have beaten just now."""
    world = World()
    made = [Node(world, index, number, is_supervised=is_supervised) for index in range(number)]
    for node in made:
        world.events += [
            {"event": "rank_up", "attempt": 1, "rank": rank, "node": f"n{node.number}"}
            for rank in (2 * node.number, 2 * node.number + 1)
        ]
        node.heartbeats(2 * node.number, 2 * node.number + 1, step=10, collective=20)
    return world, made


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
