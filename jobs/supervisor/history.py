"""What a start that carries a run on needs of its events: counters, and how the last one ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from jobs.supervisor.bad_nodes import REPEATED, Blame, Past
from jobs.supervisor.decide import REQUEUE, SUCCESSOR
from jobs.supervisor.ending import Counters
from rundir import events, plain
from rundir.failure.attempt import every, integer, last

if TYPE_CHECKING:
    from rundir.events import Event
    from rundir.paths import RunDir

_NAMES = (b'"start"', b'"decision"', b'"checkpoint"', b'"signal"', b'"end"', b'"bad_node"')
"""Only these lines are read: a long run has many others."""


class Unreported(NamedTuple):
    """A start of which nobody reported the end."""

    attempt: int
    node: str
    """Where its script ran."""
    time: str


class History:
    """The events of the starts before this one."""

    def __init__(self, data: bytes) -> None:
        """Read them."""
        lines = data.split(b"\n")
        found = (events.parse(line) for line in lines if any(name in line for name in _NAMES))
        self._events = [event for event in found if event is not None]

    @property
    def _requeue(self) -> Event:
        """The last decision, if it sent the job back to the queue; else empty."""
        decision = last(self._events, "decision")
        return decision if decision.get("decision") in (REQUEUE, SUCCESSOR) else {}

    @property
    def counters(self) -> Counters:
        """The counters of a job that went back to the queue; else zero."""
        return Counters(idle=integer(self._requeue.get("idle")) or 0)

    @property
    def carries_on(self) -> bool:
        """Whether a job went back to the queue that had a checkpoint of its own."""
        return self._requeue.get("carries_on") is True

    def past(self, attempt: int) -> Past:
        """What the attempts before this one say of nodes."""
        decision = last(self._events, "decision")
        blamed = decision.get("blamed")
        blame = None
        if decision.get("attempt") == attempt - 1 and isinstance(blamed, dict):
            node, rank, text = map(blamed.get, ("node", "rank", "text"))
            blame = Blame(str(node), integer(rank), str(text))
        bad = every(self._events, "bad_node")
        ranks = (integer(one.get("rank")) for one in bad if one.get("source") == REPEATED)
        return Past(blame, frozenset(rank for rank in ranks if rank is not None))

    def num_silent(self, attempt: int) -> int:
        """How many starts in a row before this one neither decided anything nor saved."""
        known = (last(self._events, name).get("attempt") for name in ("decision", "checkpoint"))
        return attempt - 1 - max(integer(one) or 0 for one in known)

    def unreported(self, attempt: int) -> Unreported | None:
        """The start before this one, if it neither got a signal nor reported its end."""
        of_it = [event for event in self._events if event.get("attempt") == attempt - 1]
        if any(every(of_it, name) for name in ("signal", "end")):
            return None
        start = last(of_it, "start")
        nodes = start.get("nodes")
        if not isinstance(nodes, list) or not nodes:
            return None
        return Unreported(attempt - 1, str(nodes[0]), str(start.get("time") or ""))


def read(files: RunDir) -> History:
    """Read a run's history; a new run has none."""
    try:
        return History(events.read_run(files.path))
    except OSError:
        return History(b"")


def num_starts(files: RunDir) -> int:
    """Count the starts of a run."""
    try:
        with plain.open_plain(files.events) as file:
            return sum(b'"event": "start"' in line for line in file)
    except OSError:
        return 0
