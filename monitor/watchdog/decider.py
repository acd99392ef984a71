"""The node's watchdog: suspects, asks the other nodes, decides with them, acts.

Any node whose ranks have been silent for too long tells what it sees (`hang_report`); then every
other node tells, too. The node that leads, node rank 0, waits for all reports and composes the
verdict. Every node ends its own ranks when it finds or hears one. Who hears nothing of the leader
for a while leads itself.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from monitor.watchdog.verdict import NodeReport, RankReport, Verdict, compose, from_event
from monitor.words import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from monitor.events import Event
    from monitor.watchdog.observer import Look
    from monitor.watchdog.stacks import Stack

COLLECT_S = 15.0
"""How long the leader waits for the reports of the others."""
_DEPUTY_S = 15.0  # how much longer the next in line waits for a verdict
_PER_PLACE_S = 2.0
_HEAR_S = 5.0  # how often to listen while nothing is suspected
_BUSY_S = 0.5  # how often to look while something is
_MOVED_S = 5.0  # how soon to tell that a rank has moved on
_RETELL_S = 30.0  # how soon to tell again what has not changed
_FORGET_S = 3 * _RETELL_S  # a watcher that tells no more may have died: its word is too old


class Board(Protocol):
    """Where the watchers of all nodes meet. Nothing here hangs or raises."""

    def tell(self, event: str, **keys: object) -> None:
        """Tell the others something."""
        ...

    def hear(self) -> Sequence[Event]:
        """Hear what was told since the last time, one's own words included."""
        ...

    @property
    def is_stuck(self) -> bool:
        """Whether others may have told what cannot be heard now."""
        ...


class Hands(Protocol):
    """What a watcher can do on its node. Nothing here hangs or raises."""

    def look(self) -> Look:
        """Look at all ranks of this node."""
        ...

    def stacks(self, ranks: Sequence[RankReport]) -> Mapping[int, Stack]:
        """Take the stacks of these ranks."""
        ...

    def traces(self) -> Sequence[str]:
        """Name the flight recorder's dumps, after asking for them."""
        ...

    def reaches_master(self) -> bool | None:
        """Try to connect to where the ranks meet; None if nobody told where."""
        ...

    def end_ranks(self) -> None:
        """End the ranks of this node."""
        ...

    def say(self, message: str) -> None:
        """Tell a person."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which node this is, of how many, in which attempt."""

    node: str
    node_rank: int = 0
    num_nodes: int = 1
    attempt: int = 1
    master: str = "the master"
    """MASTER_ADDR:MASTER_PORT, for the verdict's text."""


@dataclass
class _Others:
    """What the nodes of this attempt have told so far."""

    place: Place
    reports: dict[str, NodeReport] = field(default_factory=dict)
    heard_s: dict[str, float] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    ended: dict[str, int] = field(default_factory=dict)
    """Nodes whose watchers have ended, with their node ranks: no report is due from them."""
    verdict: str | None = None

    def take(self, event: Event, now_s: float) -> None:
        if event.get("attempt") != self.place.attempt:
            return
        name, node = event.get("event"), str(event.get("node"))
        if name == "hang_report":
            report = from_event(event)
            if report is not None and node != self.place.node:
                self.reports[node], self.heard_s[node] = report, now_s
        elif name == "verdict":
            self.verdict = str(event.get("text"))
        elif name == "last_beats":
            self.ended[node] = int(event.get("node_rank") or 0)
            self.reports.pop(node, None)
        elif name in ("rank_up", "monitor_up"):
            self.names.add(node)

    def forget(self, now_s: float) -> None:
        for node in [n for n in self.reports if now_s - self.heard_s[n] > _FORGET_S]:
            del self.reports[node]

    def aged(self, now_s: float) -> list[NodeReport]:
        """Give the newest report of each node; who has moved on since would have told."""
        return [
            replace(
                report,
                ranks=tuple(
                    replace(rank, age_s=rank.age_s + now_s - self.heard_s[node])
                    for rank in report.ranks
                ),
            )
            for node, report in self.reports.items()
        ]

    def suspect(self) -> bool:
        return any(rank.hung for report in self.reports.values() for rank in report.ranks)

    def lost(self) -> list[str]:
        """Name the nodes whose reports are missing."""
        present = {self.place.node, *self.reports, *self.ended}
        num_missing = self.place.num_nodes - len(present)
        if num_missing <= 0:
            return []
        return sorted(self.names - present) or [
            f"{num_missing} of {counted(self.place.num_nodes, 'node')}"
        ]

    def place_in_line(self) -> int:
        """Tell how many living watchers come before this one."""
        before = sum(1 for rank in self.ended.values() if rank < self.place.node_rank)
        return max(0, self.place.node_rank - before)


class Decider:
    """Takes one look at a time; whoever owns it calls `tick` again after the time it returns."""

    def __init__(
        self,
        place: Place,
        hands: Hands,
        board: Board,
        look_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Watch.

        Args:
            place: which node this is.
            hands: looks and acts.
            board: where to meet the others.
            look_s: how often to look while nothing is suspected, in seconds.
            monotonic: seconds that never jump.

        """
        self._place = place
        self._hands = hands
        self._board = board
        self._look_s = look_s
        self._monotonic = monotonic
        self._others = _Others(place)
        self._heard_s: float | None = None
        self._opened_s: float | None = None
        self._told: tuple[tuple[int, ...], tuple[object, ...]] | None = None
        self._told_s = 0.0
        self._seen: dict[int, tuple[object, Stack]] = {}
        self._reaches_master: bool | None = None
        self._traces: tuple[str, ...] = ()

    def tick(self) -> float | None:
        """Look once and do what is to be done; seconds until the next look, None: no more."""
        look, now_s = self._hands.look(), self._monotonic()
        self._hear(now_s)
        if self._others.verdict is not None:
            self._act(self._others.verdict)
            return None
        if not (look.is_suspicious or self._others.suspect()):
            self._close(look.ranks)
            return self._look_s
        if self._opened_s is None:
            self._open(now_s)
        mine = self._report(look.ranks)
        self._tell(mine, now_s)
        verdict = self._decide(mine, now_s)
        if verdict is None:
            return min(_BUSY_S, self._look_s)
        self._board.tell("verdict", **asdict(verdict))
        self._act(verdict.text)
        return None

    def _hear(self, now_s: float) -> None:
        """Listen seldom while all is well: a shared file system may be asked by many."""
        is_due = self._heard_s is None or now_s - self._heard_s >= min(_HEAR_S, 4 * self._look_s)
        if self._place.num_nodes > 1 and (is_due or self._opened_s is not None):
            self._heard_s = now_s
            for event in self._board.hear():
                self._others.take(event, now_s)
            self._others.forget(now_s)

    def _open(self, now_s: float) -> None:
        self._opened_s, self._told = now_s, None
        self._reaches_master = self._hands.reaches_master()

    def _close(self, ranks: Sequence[RankReport]) -> None:
        """All is well again; the others hear so if they were told otherwise."""
        if self._told is not None and self._place.num_nodes > 1:
            self._board.tell("hang_report", **self._node_report(ranks).to_event())
        self._opened_s, self._told = None, None
        self._seen.clear()

    def _report(self, ranks: Sequence[RankReport]) -> NodeReport:
        """Add the stacks: of each rank once where it stands, as long as it stands there."""
        still = [rank for rank in ranks if rank.state is not None and rank.is_still()]
        fresh = [rank for rank in still if self._seen_at(rank) != _spot(rank)]
        if fresh:
            self._traces = tuple(self._hands.traces())
            stacks = self._hands.stacks(fresh)
            self._seen |= {
                rank.rank: (_spot(rank), stacks[rank.rank]) for rank in fresh if rank.rank in stacks
            }
        return self._node_report([self._with_stack(rank) for rank in ranks])

    def _node_report(self, ranks: Sequence[RankReport]) -> NodeReport:
        return NodeReport(
            node=self._place.node,
            node_rank=self._place.node_rank,
            ranks=tuple(ranks),
            reaches_master=self._reaches_master,
            traces=self._traces,
        )

    def _seen_at(self, rank: RankReport) -> object:
        seen = self._seen.get(rank.rank)
        return seen[0] if seen else None

    def _with_stack(self, rank: RankReport) -> RankReport:
        seen = self._seen.get(rank.rank)
        if seen is None or seen[0] != _spot(rank):
            return rank
        stack = seen[1]
        return replace(rank, top=stack.top, stack=stack.path, waiting=stack.is_waiting)

    def _tell(self, mine: NodeReport, now_s: float) -> None:
        """Tell at once who hangs and who no longer does; now and then who has moved on."""
        hung = tuple(rank.rank for rank in mine.ranks if rank.hung)
        spots = tuple(_spot(rank) for rank in mine.ranks)
        since_s = now_s - self._told_s
        if (
            self._told is None
            or hung != self._told[0]
            or (spots != self._told[1] and since_s >= _MOVED_S)
            or since_s >= _RETELL_S
        ):
            self._board.tell("hang_report", **mine.to_event())
            self._told, self._told_s = (hung, spots), now_s

    def _decide(self, mine: NodeReport, now_s: float) -> Verdict | None:
        lost, waited_s = self._others.lost(), now_s - (self._opened_s or now_s)
        place = self._others.place_in_line()
        turn_s = COLLECT_S + _DEPUTY_S + _PER_PLACE_S * place if place else 0.0
        if waited_s < turn_s or (lost and waited_s < COLLECT_S):
            return None
        if self._board.is_stuck:  # who is not heard is not lost for that
            lost = []
        return compose([mine, *self._others.aged(now_s)], lost, self._place.master)

    def _act(self, text: str) -> None:
        self._hands.say(text)
        self._hands.end_ranks()


def _spot(rank: RankReport) -> tuple[object, ...]:
    return (rank.rank, rank.pid, rank.position(), rank.phase, rank.state in ("T", "t"))
