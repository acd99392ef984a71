"""Watches one step from beside srun, and ends it where srun would wait for ever.

srun ends a step at its first bad exit, but it waits for every node, also for one that is gone; and
where a node dies silently, its peers wait in a collective and nobody exits at all.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from jobs.messages import info
from jobs.supervisor.hang import HangWatch
from rundir import events, paths
from rundir.text import listed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jobs.backends.base import Backend
    from jobs.loop import Timer
    from jobs.supervisor.current import Current
    from jobs.supervisor.step import RunningStep

_TEARDOWN_S = 8
"""From the first failure to the end of srun."""
_KILLED_S, _LOST_S = 4, 1
"""How long srun may take to see that its ranks were killed. Those of a lost node it never sees;
and where all have reported their ends, it has had its time."""
_QUIET_S = 5
"""How long a node may be quiet beyond the interval of its monitor."""
_POLL_S = 0.5
"""How often to poll once something is wrong; before, nothing wakes up for it."""
_EARLY_S = 60
"""How long the others may run on after a rank that ended with code 0, before it is named."""
_FEW_NODES, _CALL_S = 4, 2
"""Up to how many nodes that give no report are called, and how often each."""


class Guard:
    """The guard of one step, which it may end."""

    def __init__(self, now: Current, step: RunningStep) -> None:
        """Begin to watch."""
        self._now, self._loop, self._journal, self._step = now, now.loop, now.journal, step
        self._backend = now.plan.backend
        self._nodes = [node for node in now.nodes if node != now.plan.here.node]
        self._seen: dict[str, list[tuple[int, int]]] = {}
        """Of each node the sizes and times of the files by which it shows that it is alive."""
        self._changed_s: dict[str, float] = {}
        """When these were seen to change."""
        master = "{MASTER_ADDR}:{MASTER_PORT}".format_map(now.environ)
        self._hang = HangWatch(now.journal, len(now.nodes), master)
        self._called: set[str] = set()
        self._timers: list[Timer] = []
        self._is_polling = self._is_checking = False
        self._has_terminated = self._has_early = False
        self.why = ""
        """Why the guard ended the step; empty if it did not."""
        if self._nodes and not self._backend.is_in_place:
            self._timers.append(self._loop.every(2 + len(self._nodes) / 16, self._check_nodes))

    def stop(self) -> None:
        """Stop watching."""
        for timer in self._timers:
            timer.cancel()
        self._timers = []
        self._is_polling = True  # so that it never begins again

    def is_over(self) -> bool:
        """Whether the step has ended; asked whenever something has happened to it."""
        is_over = self._step.is_over()
        is_wrong = self._step.failed_s is not None or self._journal.reports.has_suspicion
        if is_wrong and not is_over and not self._is_polling:
            self._is_polling = True
            self._timers.append(self._loop.every(_POLL_S, self._poll))
            self._poll()
        elif self._journal.reports.finished and not self._has_early:
            self._has_early = True
            self._timers.append(self._loop.after(_EARLY_S, self._name_early))
        return is_over

    def _name_early(self) -> None:
        """Name a rank that ended well long before the others, which may wait for it and never fail.

        Not where only a few are left, such as rank 0 that still saves.
        """
        finished, up = self._journal.reports.finished, self._journal.reports.up
        if self._is_polling or not 0 < len(finished) < len(up):
            return
        (early, *_), waiting = (
            [f"rank {rank} on {node}" for rank, node in ranks.items()] for ranks in (finished, up)
        )
        info(
            f"{early} ended with code 0, {_EARLY_S} s ago; not ended, and perhaps waiting for it:"
            f" {listed(waiting, 3)}"
        )

    # ---- a step in which something is wrong

    def _poll(self) -> None:
        self._hang.poll()
        if self._hang.is_time_to_ask():
            self._step.ask_for_reports()
        if len(self._hang.missing) <= _FEW_NODES:
            for node in self._hang.missing:
                self._call(node)
        if self._journal.reports.verdict_s is not None and not self._has_terminated:
            self._has_terminated = True
            self._step.terminate()
            if self._hang.gone:  # ranks on other nodes only wait for those on these
                # A run that is not elastic is requeued for a lost node: there the nodes are asked
                # once more, when the step has ended.
                if self._now.plan.job.min_nodes is not None:
                    self._report_lost(self._hang.gone)
                self._end_step("failed", _LOST_S)
        failed_s = self._step.failed_s
        if failed_s is not None and time.monotonic() - failed_s >= _TEARDOWN_S:
            self._end_step("failed", _KILLED_S if self._journal.reports.up else _LOST_S)

    def _call(self, node: str) -> None:
        """Find out, in the background, whether a report may still come from a node."""
        if node in self._called:
            return
        self._called.add(node)

        def take(how: str | None) -> None:
            self._hang.gone.pop(node, None)
            if how:
                self._hang.gone[node] = how
            self._loop.after(_CALL_S, lambda: self._called.discard(node))
            if how and self._timers:
                self._poll()

        self._loop.in_background(lambda: self._backend.lost(node), take)

    # ---- nodes that are quiet

    def _check_nodes(self) -> None:
        """Ask for quiet nodes in the background: Slurm may take long to answer."""
        if self._is_checking:
            return
        self._is_checking = True
        up: dict[str, list[int]] = {}
        for rank, node in self._journal.reports.up.items():
            up.setdefault(node, []).append(rank)
        self._loop.in_background(lambda: self._lost(up), self._act)

    def _lost(self, up: dict[str, list[int]]) -> tuple[list[tuple[str, str]], list[bytes]]:
        """Find quiet nodes that are lost; if any is quiet, also reports that were not delivered."""
        there = [node for node in self._nodes if node in up and node not in self._step.left]
        quiet = [node for node in there if self._is_quiet(node, up[node])]
        kept = [*events.undelivered(self._now.plan.files.path).values()] if quiet else []
        return self._backend.lost_of(quiet), kept

    def _is_quiet(self, node: str, ranks: list[int]) -> bool:
        """Whether a node has left no traces for a while; one that is well is asked again later."""
        traces = [_size_and_time(path) for path in self._traces(node, ranks)]
        now_s, interval_s = time.monotonic(), self._now.settings.number("DDP_MONITOR_INTERVAL")
        if traces != self._seen.get(node):
            self._seen[node], self._changed_s[node] = traces, now_s
        elif now_s - self._changed_s[node] >= interval_s + _QUIET_S:
            self._changed_s[node] = now_s
            return True
        return False

    def _traces(self, node: str, ranks: list[int]) -> list[str]:
        """Name its monitor's log, or without one its ranks' logs."""
        plan, settings = self._now.plan, self._now.settings
        if settings.is_on("DDP_MONITOR"):
            return [paths.gutil_path(settings["DDP_OUT"], plan.job.id, node)]
        return [plan.files.rank_log(rank) for rank in ranks]

    def _act(self, found: tuple[list[tuple[str, str]], list[bytes]] | None) -> None:
        self._is_checking = False
        if not self._timers or found is None:
            return  # the step has ended meanwhile
        lost, kept = found
        # From a node whose slurmstepd is dead srun hands on no report.
        for line in (line for data in kept for line in data.splitlines(keepends=True)):
            if line.endswith(b"\n") and not self._journal.reports.knows(line):
                self._journal.add(line)
        # An elastic step goes on without some nodes.
        fatal = {node: how for node, how in lost if not self._step.lose(node, how)}
        self._report_lost(fatal)
        if fatal:
            self._end_step(f"lost {', '.join(fatal)}", _LOST_S)

    def _report_lost(self, lost: Mapping[str, str]) -> None:
        for node, how in lost.items():
            info(f"{node} is lost: {how}")
            self._journal.write("lost_node", node=node, how=how)

    def _end_step(self, why: str, delay_s: float = _KILLED_S) -> None:
        """Kill what runs on the nodes that answer, and soon after that srun, which may wait."""
        self.stop()
        self.why = why
        if self._backend.is_in_place:
            self._step.signal(signal.SIGKILL)
            return
        self._loop.in_background(self._step.kill)
        self._loop.after(delay_s, lambda: self._step.signal(signal.SIGKILL))


def _size_and_time(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0)
    return (found.st_size, found.st_mtime_ns)


def lost_nodes(
    backend: Backend, suspected: Sequence[str], nodes: Sequence[str], *, may_have_dropped: bool
) -> list[tuple[str, str]]:
    """Find the nodes that are lost when a step has ended, and how.

    `suspected` are nodes with a rank that reported no end, or that the watchdog did not reach. Any
    of `nodes` that Slurm has taken out of the job is lost, although it may answer again.
    """
    found = backend.lost_of(suspected)
    known = {node for node, _ in found}
    dropped = backend.dropped(nodes) if may_have_dropped else []
    how = "Slurm has taken it out of the job"
    return found + [(node, how) for node in dropped if node not in known]
