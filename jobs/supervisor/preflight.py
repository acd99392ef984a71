"""The preflight: a step of its own on all nodes of the job, before the ranks of a start.

A task a node runs the same agent as a rank does, which starts `monitor preflight` and
`trainer.preflight` instead of a monitor and a trainer. Their reports end here: what the run's
events get is a verdict a node. Whatever happens to the preflight itself, the job goes on.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from jobs.backends.base import Layout, Step
from jobs.messages import info, write
from jobs.supervisor.reports import Reports
from jobs.supervisor.step import RunningStep
from rundir import codes, events, plain
from rundir.preflight import limits, verdict
from rundir.preflight.verdict import Reading, Report

if TYPE_CHECKING:
    from jobs.supervisor.current import Current
    from rundir.preflight.verdict import Verdict

_STEP = "DDP_PREFLIGHT_STEP"
"""Tells an agent that this is the preflight, and how many ranks its node will have."""
_LONGEST_S = 600.0
_DISK_S = 5.0
"""How long a file system may take, here, to show what nodes have written."""
_GRACE_S = 1


class _Inbox:
    """Takes what the step reports, so that none of it becomes an event of the run."""

    def __init__(self, attempt: int) -> None:
        self.reports = Reports(attempt)
        self.found: list[Report] = []

    def add(self, line: bytes) -> None:
        """Take a report; how far its clock is from this node's is a reading of this moment."""
        self.reports.add(line)
        event = events.parse(line)
        report = verdict.from_event(event) if event else None
        if event is None or report is None:
            return
        self.found.append(report)
        clock_s = event.get("clock_s")
        if isinstance(clock_s, float):
            skew = Reading("clock_s", clock_s - time.time())
            self.found[-1] = report._replace(readings=(*report.readings, skew))

    def write(self, event: str, **keys: object) -> None:
        """Nothing of the step is an event of the run."""

    @property
    def stopped_nodes(self) -> set[str]:
        """Nodes that were ended because another one had failed."""
        ends = (event for event in self.reports.events if event.get("event") == "rank_end")
        return {str(event.get("node")) for event in ends if event.get("requested") is True}


class Preflight:
    """One preflight of all nodes that the job has, spare ones too. A signal ends it at once."""

    def __init__(self, now: Current) -> None:
        """Start nothing yet."""
        self._now, self._plan, self._loop = now, now.plan, now.loop
        plan = now.plan
        self._nodes = plan.nodes if not plan.backend.is_in_place else plan.nodes[:1]
        self._launch_id = plan.settings["DDP_LAUNCH_ID"]
        self._container = "" if plan.is_elastic else f"{self._launch_id}.0"
        table = limits.parse(plan.settings.get(limits.VARIABLE))
        self._table = table if plan.layout.is_even else limits.without_counts(table)
        self._step: RunningStep | None = None

    def run(self) -> Verdict | None:
        """Check the nodes, report, and return the verdict; None if it could not run at all."""
        began_s = time.monotonic()
        inbox = _Inbox(self._now.attempt)
        folder = os.path.dirname(self._plan.files.preflight(""))
        self._loop.call(self._leave_file, _DISK_S)
        code = self._run_step(inbox)
        if inbox.reports.num_started == len(self._nodes):  # else one may have unpacked half of it
            self._now.container = self._container
        unseen = self._loop.call(lambda: self._find_unseen(inbox.found), _DISK_S) or []
        self._loop.call(lambda: shutil.rmtree(folder, ignore_errors=True), _DISK_S)
        if self._now.requests.stop_signal:
            return None
        if not inbox.found:
            how = "it took too long" if code is None else f"its step {codes.describe(code)}"
            then = "" if self._plan.arguments.is_preflight else "; going on"
            info(f"preflight: it could not run here, and nothing was checked: {how}{then}")
            return None
        nodes = [node for node in self._nodes if node not in inbox.stopped_nodes] or self._nodes
        found = verdict.compose([*inbox.found, *unseen], nodes, table=self._table)
        self._report(found, inbox.found, time.monotonic() - began_s)
        return found

    # ---- the step

    def _run_step(self, inbox: _Inbox) -> int | None:
        """Run it to its end, to a signal or to its time limit; its code, None if it had none."""
        try:
            step = RunningStep(self._now, self._request(), inbox, grace_s=_GRACE_S)
        except OSError:  # the ranks' own step will say why
            return codes.FAILED
        self._step = step
        whole_s = min(limits.limit_of(self._table, "whole_s"), _LONGEST_S)
        is_ended = self._loop.run(lambda: step.is_over() or self._now.requests.stop_signal, whole_s)
        if not step.is_over():
            self._loop.in_background(step.kill)
            step.end()
        step.close()
        self._step = None
        self._now.sweep()
        return step.code if is_ended else None

    def _request(self) -> Step:
        """A task on every node, beside whatever Slurm still counts as running there."""
        values, num_nodes = self._plan.settings, len(self._nodes)
        environ = self._now.environ
        environ.pop("DDP_NPROC_PER_NODE", None)
        environ |= {
            _STEP: str(self._plan.layout.num_local_ranks),
            "WORLD_SIZE": str(num_nodes),
            "DDP_NUM_NODES": str(num_nodes),
            "DDP_GRACE": str(_GRACE_S),
            "DDP_BIND": "0",
        }
        layout = Layout(num_nodes, num_nodes, 1, 1)
        out, container = values["DDP_OUT"], self._container
        return Step([], environ, layout, self._nodes, out, is_restart=True, container=container)

    def break_off(self) -> None:
        """End it: the script itself fails."""
        if self._step is not None:
            self._step.end()

    # ---- the run directory, as nodes see each other's files

    def _leave_file(self) -> None:
        path = self._plan.files.preflight("supervisor")
        with suppress(OSError):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(f"{path}.new", "w", opener=plain.plain_opener) as file:
                file.write(self._launch_id)
            os.rename(f"{path}.new", path)

    def _find_unseen(self, reports: list[Report]) -> list[Report]:
        """Look from here for the file of each node that has written one."""
        wrote = [r.node for r in reports if any(one.check == "run_dir_s" for one in r.readings)]
        found = []
        for node in wrote:
            is_seen = False
            with suppress(OSError, ValueError):
                is_seen = plain.read_text(self._plan.files.preflight(node)) == self._launch_id
            reading = Reading("run_dir_unseen", int(not is_seen), "its file, by the supervisor")
            found.append(Report(node, "monitor", (reading,)))
        return found

    # ---- what is reported

    def _report(self, found: Verdict, reports: list[Report], seconds: float) -> None:
        bad = {one.node: one.reason for one in found.bad}
        self._now.journal.open(self._now.attempt)
        for node in self._nodes:
            self._now.journal.write(
                "preflight",
                node=node,
                is_bad=node in bad,
                reason=bad.get(node),
                findings=[one.text for one in found.findings if one.node == node],
                readings=[list(one) for r in reports if r.node == node for one in r.readings],
            )
        info(verdict.summary(found, seconds))
        write(2, found.table())
        is_whole = not any(one.check.name == "missing" for one in found.findings)
        if is_whole and not any(report.part == "trainer" for report in reports):
            info("preflight: no GPU and no link was checked, because no node has Python with torch")
