"""Decides that ranks hang: from what the nodes' watchdogs report while a step runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Callable

if TYPE_CHECKING:
    from jobs.supervisor.journal import Journal
    from rundir.hang.nodes import Nodes


class HangWatch:
    """Gives the verdict on one step, which its guard then ends.

    Args:
        journal: Has their reports, and takes the verdict.
        num_nodes: How many report.
        master: MASTER_ADDR:MASTER_PORT, for the verdict's text.
        monotonic: Seconds that never jump.

    """

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
        self._asked_s = float("-inf")
        self.missing: list[str] = []
        """Nodes whose reports are waited for."""
        self.gone: dict[str, str] = {}
        """Those of them that cannot be reached, and how; for the guard to find out."""

    def poll(self) -> None:
        """Read what has been reported since the last poll, and decide if it is time."""
        now_s = self._monotonic()
        nodes = self._read(now_s)
        self.missing = []
        if nodes is None or nodes.verdict is not None or not nodes.is_suspicious(now_s):
            self._suspected_s = None
            self.gone.clear()
            return
        if self._suspected_s is None:
            self._suspected_s = now_s
        waited_s = now_s - self._suspected_s
        self.missing = nodes.missing()
        self.gone = {node: how for node, how in self.gone.items() if node in self.missing}
        is_stuck = self._journal.is_stuck
        verdict = nodes.decide(now_s, waited_s, may_miss=is_stuck, gone=self.gone)
        if verdict is not None:
            self._suspected_s = None
            self._journal.write("verdict", **verdict.to_event())

    def is_time_to_ask(self) -> bool:
        """Whether the nodes are to be asked for reports: only those with a suspicion give any.

        They are asked as long as there is no verdict: one that gets no request decides by itself.
        """
        from rundir.hang.nodes import ASK_S  # noqa: PLC0415 -- most runs never need it

        now_s = self._monotonic()
        is_open = self._suspected_s is not None and self._num_nodes > 1
        if not is_open or now_s - self._asked_s < ASK_S:
            return False
        self._asked_s = now_s
        return True

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
