"""The node's watchdog: suspects, takes stacks, and reports.

A node whose ranks have been silent for too long reports what it sees (`hang_report`); the
supervisor asks the others to report, too, gives the verdict when all have, and ends the ranks.

Where there is no supervisor, or it has been silent for long, the nodes read each other's reports in
`events.jsonl`, decide by the same function, and end their own ranks: the first verdict counts.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from rundir.hang.nodes import ASK_S, COLLECT_S, REPEAT_S, Nodes
from rundir.hang.reports import NodeReport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monitor.watchdog.actions import Actions
    from monitor.watchdog.event_channel import EventChannel
    from monitor.watchdog.observer import Observation
    from monitor.watchdog.settings import WatchSettings
    from monitor.watchdog.stacks import Stack
    from rundir.hang.reports import RankReport
    from rundir.hang.verdict import Verdict

_SUPERVISOR_S = 30.0  # how much longer than for all reports the supervisor is waited for
_ASKED_S = 2 * ASK_S  # for how long a node that was asked reports
_PER_NODE_S = 2.0  # nodes decide one after the other, so that one verdict is given
_POLL_S = 5.0  # how often to read the others' reports while nothing is suspected
_BUSY_S = 0.5  # how often to poll while something is
_MOVED_S = 5.0  # how soon to report that a rank has moved on


class Watchdog:
    """Takes one poll at a time; its owner calls `tick` again after the time it returns."""

    def __init__(
        self,
        settings: WatchSettings,
        local: Actions,
        channel: EventChannel,
        poll_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._local = local
        self._channel = channel
        self._poll_s = poll_s
        self._monotonic = monotonic
        self._nodes = Nodes(settings.num_nodes, settings.master)
        self._received_s: float | None = None
        self._supervisor_s = COLLECT_S + _SUPERVISOR_S if settings.is_supervised else 0.0
        """How long a silent supervisor is waited for."""
        self._opened_s: float | None = None
        self._asked_s = float("-inf")
        self._reported: tuple[tuple[object, ...], tuple[object, ...]] | None = None
        self._reported_s = 0.0
        self._seen: dict[object, Stack] = {}
        self._reaches_master: bool | None = None
        self._traces: tuple[str, ...] = ()

    def tick(self) -> float | None:
        """Poll once and do what is to be done; seconds until the next poll, None: no more."""
        poll, now_s = self._local.poll(), self._monotonic()
        self._receive(now_s)
        if self._nodes.verdict is not None:
            self._act(self._nodes.verdict)
            return None
        is_asked = now_s - self._asked_s < _ASKED_S
        is_wanted = is_asked or self._nodes.is_suspicious(now_s, self._settings.node)
        if not (poll.is_suspicious or is_wanted):
            self._close(poll)
            return self._poll_s
        if self._opened_s is None:
            self._opened_s, self._reported = now_s, None
            self._reaches_master = self._local.reaches_master()
        mine = self._stacked_report(poll)
        self._send(mine, now_s)
        self._nodes.add_report(mine, now_s)
        verdict = self._decide(now_s)
        if verdict is None:
            return min(_BUSY_S, self._poll_s)
        self._channel.report("verdict", **verdict.to_event())
        self._act(verdict.text)
        return None

    def ask(self) -> None:
        """Report at the next poll, and for a while: the supervisor wants to know."""
        self._asked_s = self._monotonic()

    def _waited_s(self, now_s: float) -> float:
        """How long a verdict has been due from the nodes; negative: from the supervisor."""
        opened_s = now_s if self._opened_s is None else self._opened_s
        return now_s - max(opened_s, self._asked_s) - self._supervisor_s

    def _receive(self, now_s: float) -> None:
        """Read seldom while all is well: a shared file system may be asked by many.

        A supervisor that is not silent knows more, and does what follows from it.
        """
        if self._waited_s(now_s) < 0:
            return
        due_s = min(_POLL_S, 4 * self._poll_s)
        is_due = self._received_s is None or now_s - self._received_s >= due_s
        if self._opened_s is not None or (self._settings.num_nodes > 1 and is_due):
            self._received_s = now_s
            for event in self._channel.receive():
                if event.get("attempt") == self._settings.attempt:
                    self._nodes.add(event, now_s)

    def _close(self, poll: Observation) -> None:
        """Withdraw the reported suspicion: all is well again."""
        has_readers = self._settings.num_nodes > 1 or self._settings.is_supervised
        if self._reported is not None and has_readers:
            self._channel.report("hang_report", **self._node_report(poll, poll.ranks).to_event())
        self._opened_s, self._reported = None, None
        self._seen.clear()

    def _decide(self, now_s: float) -> Verdict | None:
        waited_s = self._waited_s(now_s)
        if waited_s < _PER_NODE_S * self._settings.node_rank:
            return None  # it is not this node's turn
        waited_s += self._supervisor_s
        return self._nodes.decide(now_s, waited_s, may_miss=self._channel.is_stuck)

    def _stacked_report(self, poll: Observation) -> NodeReport:
        """Add the stacks: of each rank once where it stands, as long as it stands there."""
        still = [rank for rank in poll.ranks if rank.state is not None and rank.is_still()]
        fresh = [rank for rank in still if _spot(rank) not in self._seen]
        if fresh:
            self._traces = tuple(self._local.traces())
            stacks = self._local.stacks(fresh)
            self._seen |= {_spot(rank): stacks[rank.rank] for rank in fresh if rank.rank in stacks}
        return self._node_report(poll, [self._with_stack(rank) for rank in poll.ranks])

    def _node_report(self, poll: Observation, ranks: Sequence[RankReport]) -> NodeReport:
        return NodeReport(
            node=self._settings.node,
            node_rank=self._settings.node_rank,
            ranks=tuple(ranks),
            reaches_master=self._reaches_master,
            traces=self._traces,
            suspicious=poll.is_suspicious,
        )

    def _with_stack(self, rank: RankReport) -> RankReport:
        stack = self._seen.get(_spot(rank))
        if stack is None:
            return rank
        return replace(rank, top=stack.top, stack=stack.path, waiting=stack.is_waiting)

    def _send(self, mine: NodeReport, now_s: float) -> None:
        """Report at once which rank hangs or no longer does; now and then which has moved on."""
        hung = (mine.suspicious, *(rank.rank for rank in mine.ranks if rank.hung))
        spots = tuple(_spot(rank) for rank in mine.ranks)
        since_s = now_s - self._reported_s
        if (
            self._reported is None
            or hung != self._reported[0]
            or (spots != self._reported[1] and since_s >= _MOVED_S)
            or since_s >= REPEAT_S
        ):
            self._channel.report("hang_report", **mine.to_event())
            self._reported, self._reported_s = (hung, spots), now_s

    def _act(self, text: str) -> None:
        self._local.emit(text)
        self._local.end_ranks()


def _spot(rank: RankReport) -> tuple[object, ...]:
    return (rank.rank, rank.pid, rank.position(), rank.phase, rank.state in ("T", "t"))
