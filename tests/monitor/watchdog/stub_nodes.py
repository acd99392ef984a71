"""Nodes whose watchdogs share a channel, in a time that goes on as the test wants."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from monitor.watchdog.node import Watchdog
from monitor.watchdog.observer import Observation
from monitor.watchdog.settings import WatchSettings
from monitor.watchdog.stacks import Stack
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
        settings = WatchSettings(
            heartbeat_dir="",
            run_dir="",
            launch_id="",
            node=self.name,
            node_rank=self.number,
            num_nodes=self.num_nodes,
            is_supervised=self.is_supervised,
        )
        self.dog = Watchdog(settings, self, self, 5.0, lambda: self.world.now_s)

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
