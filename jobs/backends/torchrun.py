"""One task a node, whose ranks torchrun starts: on any backend that starts a step of Slurm.

The step is the same, with fewer tasks. Their launchers see DDP_NPROC_PER_NODE and that they are
alone on their node, and `jobs/agent/node.py` runs torchrun.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.backends.base import Layout
from jobs.backends.containers import HostImage, InContainer
from jobs.backends.srun import Srun

if TYPE_CHECKING:
    from jobs.backends.base import Surroundings


class Torchrun(Srun):
    """On the machines themselves."""

    has_standby = False

    @classmethod
    def fits(cls, here: Surroundings) -> bool:
        """Where a node has one task and is to have several ranks."""
        is_task_a_node = here.slurm.num_tasks == here.num_nodes
        return super().fits(here) and is_task_a_node and here.num_local_ranks > 1

    def layout(self) -> Layout:
        """Ranks as many as were asked for on each node."""
        num_nodes = self._here.num_nodes
        return Layout(num_nodes, num_nodes, 1, self._here.num_local_ranks)


class TorchrunHostImage(Torchrun, HostImage):
    """Into containers, from the host."""


class TorchrunInContainer(Torchrun, InContainer):
    """Into containers, from inside one."""
