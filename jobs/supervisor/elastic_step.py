"""The step of an elastic torchrun: one task a node, each a step of Slurm's own, that come and go.

In one step for all, srun would abort all of it when it loses one node, also with --no-kill (seen
with Slurm 22.05: "Cannot communicate with node 1. Aborting job.").
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from jobs import processes
from jobs.backends.base import Layout
from jobs.messages import info
from jobs.supervisor.step import RunningStep
from rundir import codes

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Collection

    from jobs.backends.base import Step

_LOOK_S = 5


def task_of(step: Step, rank: int, *, is_restart: bool = False) -> Step:
    """Give the step of one node."""
    return step._replace(
        environ={**step.environ, "DDP_TASK_RANK": str(rank)},
        layout=Layout(1, 1, 1, 1),
        nodes=[step.nodes[rank]],
        is_restart=is_restart or step.is_restart,
    )


class ElasticStep(RunningStep):
    """Ends with the task of rank 0, where they all meet; any other may leave and come back."""

    def _start(self, stdout: int) -> list[subprocess.Popen[bytes]]:
        self._stdout = os.dup(stdout)
        self._tasks: dict[int, subprocess.Popen[bytes]] = {}
        self._how: dict[int, str] = {}
        self._left: dict[int, str] = {}
        self._ended_s: float | None = None
        self._num_returns = 0
        self._is_looking = False
        self._is_requested = False
        for rank in range(len(self._step.nodes)):
            self._start_task(rank)
        self._timer = self._loop.every(_LOOK_S, self._look)
        return list(self._tasks.values())

    def _start_task(self, rank: int, *, is_restart: bool = False) -> None:
        step = task_of(self._step, rank, is_restart=is_restart)
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
        """As ever; who leaves from here on was asked to."""
        self._is_requested = True
        super().ask_for_checkpoint()

    def stop(self) -> None:
        """The same."""
        self._is_requested = True
        super().stop()

    def close(self) -> None:
        """As ever; nobody else starts."""
        self._timer.cancel()
        os.close(self._stdout)
        super().close()

    # ---- for the guard

    @property
    def failed_s(self) -> float | None:
        """When rank 0 has ended, or the watchdog gave its verdict."""
        if self._is_requested:
            return None
        return self._ended_s or self._journal.reports.verdict_s

    @property
    def left(self) -> Collection[str]:
        """Nodes whose task is gone."""
        return self._left.values()

    def lose(self, node: str, how: str) -> bool:
        """Go on without a node, unless it is the one where all meet."""
        rank = self._step.nodes.index(node)
        if rank == 0:
            return False
        if rank in self._tasks:
            self._how[rank] = how
            processes.send([self._tasks[rank].pid], signal.SIGKILL)
        return True

    # ---- nodes that are back

    def _look(self) -> None:
        """Ask beside the loop which nodes are back."""
        most = int(self._step.environ["DDP_MAX_RESTARTS"])
        if not self._left or self._is_looking or self._is_ending or self._num_returns >= most:
            return
        self._is_looking = True
        back: list[int] = []
        left = dict(self._left)
        self._loop.in_background(lambda: self._find(left, back), lambda: self._take_back(back))

    def _find(self, left: dict[int, str], back: list[int]) -> None:
        step_ids = self._journal.reports.step_ids
        for rank, node in left.items():
            if self._backend.is_back(node):
                if rank in step_ids:  # a node that was only cut off still runs it
                    self._backend.kill(step_ids[rank])
                back.append(rank)

    def _take_back(self, back: list[int]) -> None:
        self._is_looking = False
        for rank in back:
            if self._is_ending:
                return
            node = self._left.pop(rank)
            self._num_returns += 1
            self._journal.write("node_back", node=node, rank=rank)
            info(f"{node} is back: its task starts again")
            self._start_task(rank, is_restart=True)
            self._running.append(self._tasks[rank])
