"""Decides that ranks hang: from what the nodes' watchdogs report while a step runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Callable

if TYPE_CHECKING:
    from jobs.supervisor.journal import Journal
    from rundir.hang.nodes import Nodes


class HangWatch:
    """Gives the verdict on one step. The nodes' watchdogs end their ranks when they read it.

    Args:
        journal: Has their reports, and takes the verdict.
        num_nodes: How many report.
        master: MASTER_ADDR:MASTER_PORT, for the verdict's text.
        monotonic: Seconds that never jump.

    """

    POLL_S = 0.5

    def __init__(
        self,
        journal: Journal,
        num_nodes: int,
        master: str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is suspected yet."""
        self._journal = journal
        self._num_nodes = num_nodes
        self._master = master
        self._monotonic = monotonic
        self._nodes: Nodes | None = None
        self._num_read = 0
        self._suspected_s: float | None = None

    def poll(self) -> None:
        """Read what has been reported since the last poll, and decide if it is time."""
        now_s = self._monotonic()
        nodes = self._read(now_s)
        if nodes is None or nodes.verdict is not None:
            return
        if not nodes.is_suspicious(now_s):
            self._suspected_s = None
            return
        if self._suspected_s is None:
            self._suspected_s = now_s
        waited_s = now_s - self._suspected_s
        verdict = nodes.decide(now_s, waited_s, may_miss=self._journal.is_stuck)
        if verdict is not None:
            self._journal.write("verdict", **verdict.to_event())

    def _read(self, now_s: float) -> Nodes | None:
        """Take the new reports; None as long as no node has suspected anything."""
        events = self._journal.reports.events
        new = events[self._num_read :]
        self._num_read = len(events)
        if self._nodes is None:
            if not any(event.get("event") == "hang_report" for event in new):
                return None
            from rundir.hang.nodes import Nodes  # noqa: PLC0415 -- most runs never need it

            self._nodes = Nodes(self._num_nodes, self._master)
            new = events
        for event in new:
            self._nodes.add(event, now_s)
        return self._nodes
