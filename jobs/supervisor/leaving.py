"""A bad node leaves the job: the event, what later jobs learn of it, and the administrators."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from jobs.messages import info
from jobs.supervisor.bad_nodes import within_limit
from rundir import events, paths
from rundir import nodes as node_file
from rundir.text import problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobs.supervisor.current import Current
    from rundir.nodes import BadNode

COMMAND_LIMIT_S = 60
"""How long DDP_ON_BAD_NODE may run."""
_HOUR_S = 3600
_LEAST_S = 2
"""For what is still to be reported when the job was asked to end."""


class Leaving:
    """Takes bad nodes out of the job."""

    def __init__(self, now: Current) -> None:
        """No node is bad yet."""
        self._now, self._settings, self._loop = now, now.settings, now.loop
        self._num_running = 0
        self._commands: list[subprocess.Popen[bytes]] = []

    @property
    def is_wanted(self) -> bool:
        """Whether nodes may leave the job."""
        return self._settings.is_on("DDP_BAD_NODES")

    def take(self, bad: Sequence[BadNode], rank: int | None = None) -> tuple[BadNode, ...]:
        """Take nodes out, unless they are too many to be believed.

        Args:
            bad: What was found.
            rank: Whose failures blamed the node twice in a row.

        Returns:
            Those that have left.

        """
        before = [one.node for one in self._now.bad]
        leaves, note = within_limit(bad, before, self._now.plan.job.num_nodes_allocated)
        if note:
            info(note)
        now_s, for_s = time.time(), self._settings.number("DDP_BAD_NODE_HOURS") * _HOUR_S
        until = events.time_text(now_s + for_s)
        for one in leaves:
            self._now.journal.write("bad_node", **one._asdict(), rank=rank, until=until)
            info(f"node {one.node} is bad and leaves the job: {one.reason}")
        self._now.bad += leaves
        if leaves:
            self._num_running += 1
            self._loop.in_background(lambda: self._report(leaves, now_s, for_s), self._reported)
        return leaves

    def _report(self, bad: Sequence[BadNode], now_s: float, for_s: float) -> None:
        if for_s:
            self._remember(bad, now_s, for_s)
        until = events.time_text(now_s + for_s)
        command = self._settings.get("DDP_ON_BAD_NODE")
        for one in bad if command else ():
            self._run(command, one, until)

    def _remember(self, bad: Sequence[BadNode], now_s: float, for_s: float) -> None:
        """Leave nodes to later jobs."""
        path = paths.nodes_path(self._settings["DDP_OUT"])
        try:
            node_file.append(path, bad, job=self._settings["DDP_JOB_ID"], now_s=now_s, for_s=for_s)
        except OSError as error:
            info(f"could not append to {path} ({error.strerror}); later jobs do not learn of it")

    def _run(self, command: str, one: BadNode, until: str) -> None:
        """Run the administrators' command for a node; what it prints goes to the job's log."""
        of_node = {
            "DDP_BAD_NODE": one.node,
            "DDP_BAD_NODE_REASON": one.reason,
            "DDP_BAD_NODE_SOURCE": one.source,
            "DDP_BAD_NODE_UNTIL": until,
        }
        try:
            process = subprocess.Popen(
                ["bash", "-c", command],
                env={**self._now.environ, **of_node},
                stdin=subprocess.DEVNULL,
                stdout=2,
                start_new_session=True,
            )
            self._commands.append(process)
            code: object = process.wait(COMMAND_LIMIT_S)
        except subprocess.TimeoutExpired:
            _kill(process)
            code = f"that it runs after {COMMAND_LIMIT_S} s"
        except OSError as error:
            code = error.strerror
        if code:
            found = f"code {code}" if isinstance(code, int) else code
            rule = f"DDP_ON_BAD_NODE must end with code 0 for {one.node}"
            info(problem(rule, found, "try it by hand; the job does not depend on it"))

    def _reported(self, _: None) -> None:
        self._num_running -= 1

    def finish(self) -> None:
        """Wait for what is still to be reported, but not for ever."""
        limit_s = _LEAST_S if self._now.requests.is_stopped() else COMMAND_LIMIT_S
        self._loop.run(lambda: not self._num_running, limit_s)
        self.break_off()

    def break_off(self) -> None:
        """End the commands that still run."""
        for process in self._commands:
            if process.poll() is None:
                _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
