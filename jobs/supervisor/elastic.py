"""Elastic runs: nodes that leave, and are taken back.

Returns      of any elastic run: for the next attempt, or as spares if it has enough nodes already
ElasticStep  of an elastic torchrun: within the attempt

An elastic torchrun has a task a node, and each task is a step of its own. Of one step for all, srun
would abort all tasks when it loses one node, also with --no-kill (seen with Slurm 22.05: "Cannot
communicate with node 1. Aborting job.").
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from jobs import processes
from jobs.messages import info
from jobs.supervisor import decide
from jobs.supervisor.step import RunningStep
from rundir import codes
from rundir.text import counted

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Collection

    from jobs.loop import Timer
    from jobs.supervisor.current import Current

_POLL_S = 5


class Returns:
    """Polls lost nodes; when some are back, asks the ranks to stop with a checkpoint."""

    def __init__(self, now: Current, step: RunningStep) -> None:
        """Begin to poll, if the run is elastic and nodes are lost."""
        self._now, self._loop, self._journal, self._step = now, now.loop, now.journal, step
        self._job, self._lost = now.plan.job, now.lost
        self._is_asking = False
        self.found: tuple[str, ...] = ()
        """Nodes that are back, and for which the ranks were asked to stop."""
        self.spare: tuple[str, ...] = ()
        """Nodes that are back, and that the run cannot use now."""
        self._timer: Timer | None = None
        if self._job.min_nodes is not None and self._lost:
            interval_s = now.settings.number("DDP_MONITOR_INTERVAL")
            self._timer = self._loop.every(interval_s, self._poll)

    def stop(self) -> None:
        """Stop polling."""
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _poll(self) -> None:
        """Ask the backend, in the background, unless the attempt has nothing to save yet."""
        if self._is_asking or not self._has_begun():
            return
        self._is_asking = True
        lost, backend = self._lost, self._now.plan.backend
        self._loop.in_background(lambda: tuple(filter(backend.is_back, lost)), self._act)

    def _has_begun(self) -> bool:
        if self._job.is_own_command:
            return self._journal.reports.num_started >= self._step.world_size
        return self._journal.reports.has_trained

    def _act(self, back: tuple[str, ...] | None) -> None:
        self._is_asking = False
        if self._timer is None or not back:
            return
        num_gone = len(self._lost) - len(back) + len(self._now.bad)
        num_there = self._job.num_nodes_allocated - num_gone
        num_nodes = decide.num_nodes_of(self._job, num_there, self._now.refused)
        for node in back:
            self._journal.write("node_back", node=node)
        if num_nodes <= self._step.num_nodes:
            self._keep(back)
            return
        self.stop()
        self.found = back
        on = counted(num_nodes, "node")
        info(f"{', '.join(back)}: back; asking every rank for a checkpoint, to go on on {on}")
        self._step.ask_for_checkpoint()

    def _keep(self, back: tuple[str, ...]) -> None:
        """Keep as spares nodes that are back: they can take the place of the next lost one."""
        info(f"{', '.join(back)}: back; spare until another node is lost")
        self.spare += back
        self._lost = tuple(node for node in self._lost if node not in back)
        if not self._lost:
            self.stop()


class ElasticStep(RunningStep):
    """A step for each node, with one torchrun. Any may leave and come back, but for rank 0's.

    Rank 0's task has the store of the rendezvous: the step as a whole ends with it.
    """

    def _start(self, stdout: int) -> list[subprocess.Popen[bytes]]:
        self._stdout = os.dup(stdout)
        self._tasks: dict[int, subprocess.Popen[bytes]] = {}
        self._how: dict[int, str] = {}
        self._left: dict[int, str] = {}
        self._ended_s: float | None = None
        self._num_returns = 0
        self._is_asking = False
        self._is_requested = False
        for rank in range(len(self._step.nodes)):
            self._start_task(rank)
        self._timer = self._loop.every(_POLL_S, self._poll)
        return list(self._tasks.values())

    def _start_task(self, rank: int, *, is_restart: bool = False) -> None:
        step = self._step.of_node(rank, is_restart=is_restart)
        (self._tasks[rank],) = self._backend.start(step, self._stdout)

    def is_over(self) -> bool:
        """Whether every task has ended."""
        for rank, process in list(self._tasks.items()):
            if process.poll() is not None:
                del self._tasks[rank]
                self._running.remove(process)
                self._task_ended(rank, codes.of_wait_status(process.returncode))
        return not self._tasks

    def _task_ended(self, rank: int, code: int) -> None:
        if rank == 0:
            self.code = code
            self._ended_s = time.monotonic()
        elif self._is_ending or code in (codes.FINISHED, codes.STOPPED):
            return
        else:
            how = self._how.pop(rank, f"its task ended with code {code}")
            node = self._left[rank] = self._step.nodes[rank]
            self._journal.write("node_left", node=node, rank=rank, how=how)
            info(f"{node} has left: {how}; {self._returns}")

    @property
    def _returns(self) -> str:
        most = int(self._step.environ["DDP_MAX_RESTARTS"])
        if self._num_returns < most:
            return "the others go on, and it is started again when it can be"
        return f"the others go on; it is not started again: DDP_MAX_RESTARTS={most}"

    @property
    def _is_ending(self) -> bool:
        return self._ended_s is not None or self._is_requested

    def ask_for_checkpoint(self) -> None:
        """Ask as any step does; a task that ends from now on has not left, but was asked to end."""
        self._is_requested = True
        super().ask_for_checkpoint()

    def stop(self) -> None:
        """End the ranks as any step does; their tasks have not left."""
        self._is_requested = True
        super().stop()

    def close(self) -> None:
        """Close as any step does, and start no task any more."""
        self._timer.cancel()
        os.close(self._stdout)
        super().close()

    # ---- for the guard

    @property
    def failed_s(self) -> float | None:
        """When rank 0's task has ended, or the watchdog gave its verdict."""
        if self._is_requested:
            return None
        return self._ended_s or self._journal.reports.verdict_s

    @property
    def left(self) -> Collection[str]:
        """Nodes whose task is gone."""
        return self._left.values()

    def lose(self, node: str, how: str) -> bool:
        """Go on without a lost node, unless it is rank 0's."""
        rank = self._step.nodes.index(node)
        if rank == 0:
            return False
        if rank in self._tasks:
            self._how[rank] = how
            processes.send([self._tasks[rank].pid], signal.SIGKILL)
        return True

    # ---- nodes that are back

    def _poll(self) -> None:
        """Ask the backend, in the background, which nodes are back."""
        most = int(self._step.environ["DDP_MAX_RESTARTS"])
        if not self._left or self._is_asking or self._is_ending or self._num_returns >= most:
            return
        self._is_asking = True
        left = dict(self._left)
        self._loop.in_background(lambda: self._find(left), self._take_back)

    def _find(self, left: dict[int, str]) -> list[int]:
        back = [rank for rank, node in left.items() if self._backend.is_back(node)]
        step_ids = self._journal.reports.step_ids
        for rank in back:
            if rank in step_ids:  # a node that was only cut off still runs it
                self._backend.kill(step_ids[rank])
        return back

    def _take_back(self, back: list[int] | None) -> None:
        self._is_asking = False
        for rank in back or ():
            if self._is_ending:
                return
            node = self._left.pop(rank)
            self._num_returns += 1
            self._journal.write("node_back", node=node, rank=rank)
            info(f"{node} is back: its task starts again")
            self._start_task(rank, is_restart=True)
            self._running.append(self._tasks[rank])
