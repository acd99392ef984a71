"""What is true of the attempt that runs now, and what it has from those before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.backends.base import Step
from jobs.supervisor import run, settings
from jobs.supervisor.bad_nodes import Past
from jobs.supervisor.ending import Counters

if TYPE_CHECKING:
    from jobs.supervisor.plan import Plan
    from rundir.nodes import BadNode


class Current:
    """The attempt that runs: its nodes and ranks, and what it is to begin with.

    Args:
        plan: What was known before the first one.

    """

    def __init__(self, plan: Plan) -> None:
        """Begin as planned."""
        self._plan = plan
        self.settings = plan.settings
        self.layout = plan.layout
        self.nodes = plan.nodes[: plan.layout.num_nodes]
        self.counters = Counters()
        self.lost: tuple[str, ...] = ()
        """Nodes that Slurm or the network has taken, and may give back."""
        self.bad: tuple[BadNode, ...] = ()
        """Nodes that have left the job, for good."""
        self.past = Past()
        self.refused: frozenset[int] = frozenset()
        """Numbers of nodes that this run cannot use."""
        self.carries_on = False
        """Whether our trainer resumes from what this run has itself."""
        self.num_restarts = 0
        self.container = ""
        """What names the containers that attempts share; empty: new ones."""
        self.latest_at_job_start = run.latest_checkpoint(plan.files)
        self.latest_at_start = self.latest_at_job_start

    @property
    def environ(self) -> dict[str, str]:
        """The environment of its ranks."""
        return self.settings.environ(self._plan.here.environ)

    @property
    def words(self) -> list[str]:
        """What the ranks run.

        Whatever the user wanted to begin with (--resume none, another run's checkpoint), a later
        start of our trainer carries on with what this run has itself.
        """
        words = self._plan.arguments.words
        return [*words, "--resume", "auto"] if self.carries_on else words

    @property
    def step(self) -> Step:
        """All of its ranks."""
        return Step(
            self.words,
            self.environ,
            self.layout,
            self.nodes,
            self.settings["DDP_OUT"],
            is_restart=self.num_restarts > 0,
            # A node that comes back may have lost part of what it had unpacked.
            container="" if self._plan.is_elastic else self.container,
        )

    def use_nodes(self, nodes: list[str]) -> None:
        """Run on these nodes from now on."""
        if nodes == self.nodes:
            return
        self.nodes = nodes
        self.layout = self.layout.on(len(nodes))
        settings.note_world(self.settings, self.layout)
        origin = self.settings.origins["DDP_NUM_NODES"]
        self.settings.note("DDP_NUM_NODES", str(len(nodes)), origin)
