"""Takes nodes back: to go on on more of them, or as spare where the run has all it may have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.messages import info
from jobs.supervisor import decide
from rundir.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobs.backends.base import Backend
    from jobs.loop import Loop
    from jobs.supervisor.ending import Job
    from jobs.supervisor.journal import Journal
    from jobs.supervisor.step import RunningStep


class Returns:
    """Looks for nodes that are back, and then asks the ranks to stop with a checkpoint.

    Args:
        loop: Where time passes.
        backend: Knows whether a node is back.
        step: Is asked to stop.
        journal: Knows how far the step is, and is told of the nodes.
        job: Says how many nodes the run may have; does nothing unless it is elastic.
        interval_s: How often to look.
        lost: The nodes to look for.
        num_bad: Nodes that have left the job for good.
        refused: Numbers of nodes that the run cannot use.

    """

    def __init__(  # noqa: PLR0913 -- each by its name
        self,
        loop: Loop,
        backend: Backend,
        step: RunningStep,
        journal: Journal,
        job: Job,
        *,
        interval_s: float,
        lost: Sequence[str],
        num_bad: int,
        refused: frozenset[int],
    ) -> None:
        """Begin to look, if there is something to look for."""
        self._loop, self._backend, self._step, self._journal = loop, backend, step, journal
        self._job, self._lost, self._refused = job, lost, refused
        self._num_bad = num_bad
        self._is_looking = False
        self.found: tuple[str, ...] = ()
        """The nodes that are back, once the ranks were asked to stop for them."""
        self.spare: tuple[str, ...] = ()
        """Those that are back, and of no use now."""
        is_needed = job.limits.min_nodes is not None and lost
        self._timer = loop.every(interval_s, self._look) if is_needed else None

    def stop(self) -> None:
        """Look no longer."""
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """Ask beside the loop. A start that has done nothing yet has nothing to save."""
        if self._is_looking or not self._has_begun():
            return
        self._is_looking = True
        back: list[str] = []
        self._loop.in_background(
            lambda: back.extend(n for n in self._lost if self._backend.is_back(n)),
            lambda: self._act(tuple(back)),
        )

    def _has_begun(self) -> bool:
        if self._job.is_own_command:
            return self._journal.reports.num_started >= self._step.world_size
        return self._journal.reports.has_trained

    def _act(self, back: tuple[str, ...]) -> None:
        self._is_looking = False
        if self._timer is None or not back:
            return
        num_gone = len(self._lost) - len(back) + self._num_bad
        num_there = self._job.num_nodes_allocated - num_gone
        num_nodes = decide.num_nodes_of(self._job, num_there, self._refused)
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
        """Ask no more for nodes that can take the place of the next one that is lost."""
        info(f"{', '.join(back)}: back; spare until another node is lost")
        self.spare += back
        self._lost = [node for node in self._lost if node not in back]
        if not self._lost:
            self.stop()
