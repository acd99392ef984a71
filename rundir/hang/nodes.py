"""The nodes of one attempt: what each has reported of ranks that stand still, and the verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rundir.hang.reports import from_event
from rundir.hang.verdict import compose

if TYPE_CHECKING:
    from collections.abc import Collection

    from rundir.events import Event
    from rundir.hang.reports import NodeReport
    from rundir.hang.verdict import Verdict

COLLECT_S = 15.0
"""How long the reports of all nodes are waited for."""
REPEAT_S = 30.0
"""How soon a node reports again what has not changed."""
ASK_S = 20.0
"""How often the supervisor asks for reports, as long as a node calls for a verdict."""
_MAX_AGE_S = 3 * REPEAT_S
"""A watchdog that reports no more may have died: what it last reported is too old then."""


class Nodes:
    """Collects events, and decides. Pure: the time, in seconds that never jump, is passed in."""

    def __init__(self, num_nodes: int, master: str) -> None:
        """Nothing is reported yet.

        Args:
            num_nodes: how many report.
            master: MASTER_ADDR:MASTER_PORT, for the verdict's text.

        """
        self._num_nodes = num_nodes
        self._master = master
        self._reports: dict[str, NodeReport] = {}
        self._received_s: dict[str, float] = {}
        self._names: set[str] = set()
        self._ended: set[str] = set()
        self.verdict: str | None = None
        """The line of a verdict that was reported."""

    def add(self, event: Event, now_s: float) -> None:
        """Take an event of this attempt; those of other names change nothing."""
        name, node = event.get("event"), str(event.get("node"))
        if name == "hang_report":
            report = from_event(event)
            if report is not None:
                self.add_report(report, now_s)
        elif name == "verdict" and self.verdict is None:
            self.verdict = str(event.get("text"))
        elif name == "last_beats":  # its watchdog has ended: no report is due from it
            self._ended.add(node)
            self._reports.pop(node, None)
        elif name in ("rank_up", "monitor_up"):
            self._names.add(node)

    def add_report(self, report: NodeReport, now_s: float) -> None:
        """Take the newest report of a node."""
        self._reports[report.node], self._received_s[report.node] = report, now_s

    def is_suspicious(self, now_s: float, besides: str | None = None) -> bool:
        """Whether a node calls for a verdict, `besides` one's own."""
        for node in [n for n in self._reports if now_s - self._received_s[n] > _MAX_AGE_S]:
            del self._reports[node]
        return any(r.suspicious for r in self._reports.values() if r.node != besides)

    def decide(
        self,
        now_s: float,
        waited_s: float,
        *,
        may_miss: bool = False,
        gone: Collection[str] = (),
    ) -> Verdict | None:
        """Return the verdict; None while there is none.

        Args:
            now_s: the time.
            waited_s: since a node first called for a verdict.
            may_miss: whether reports may be there that could not be read: then no node is lost.
            gone: nodes that cannot be reached: their reports are not waited for.

        """
        missing = self.missing()
        if waited_s < COLLECT_S and any(node not in gone for node in missing):
            return None
        return compose(self._aged(now_s), [] if may_miss else missing, self._master)

    def missing(self) -> list[str]:
        """Name the nodes that have not reported; of those that never did, their number."""
        present = {*self._reports, *self._ended}
        num_missing = self._num_nodes - len(present)
        if num_missing <= 0:
            return []
        return sorted(self._names - present) or [f"{num_missing} of {self._num_nodes} nodes"]

    def _aged(self, now_s: float) -> list[NodeReport]:
        """Return the newest reports as of now; a rank that moved on would have been reported."""
        return [self._with_age(report, now_s) for report in self._reports.values()]

    def _with_age(self, report: NodeReport, now_s: float) -> NodeReport:
        late_s = now_s - self._received_s[report.node]
        ranks = tuple(replace(rank, age_s=rank.age_s + late_s) for rank in report.ranks)
        return replace(report, ranks=ranks)
