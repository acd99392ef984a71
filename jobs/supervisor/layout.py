"""How many ranks the job gets, and on how many nodes."""

from __future__ import annotations

import glob
import os
import re
from typing import TYPE_CHECKING

from jobs.backends.base import Layout
from jobs.messages import UsageError, info
from jobs.supervisor import foreign
from jobs.supervisor.settings import bounds, integer, node_range

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobs.backends.base import Backend, Surroundings
    from jobs.supervisor.arguments import Arguments
    from jobs.supervisor.settings import Settings

_NAME = "DDP_NPROC_PER_NODE"


def count(here: Surroundings, backend: Backend, arguments: Arguments, settings: Settings) -> Layout:
    """Count the ranks of the first attempt: spare nodes are left out. Raises UsageError."""
    asked = here.environ.get(_NAME)
    if asked is not None:
        integer(1, 1024)(_NAME, asked)
    elif _is_rank_per_gpu(here, arguments):
        asked = here.slurm.gpus_on_node
        settings.note(_NAME, asked, "a rank per GPU: no tasks were asked for")
    if backend.is_in_place:
        num = int(asked) if asked else _count_in_place(here)
        return Layout(num_nodes=1, num_tasks=num, num_local_tasks=num, num_local_ranks=num)
    num_tasks = here.slurm.num_tasks
    num_local_tasks = -(-num_tasks // here.num_nodes)
    layout = Layout(here.num_nodes, num_tasks, num_local_tasks, int(asked or num_local_tasks))
    if num_tasks != here.num_nodes and layout.num_local_ranks != num_local_tasks:
        raise UsageError(
            f"{_NAME} must agree with the tasks per node unless there is one",
            f"{asked} and {num_local_tasks}",
            "unset it, or give --ntasks-per-node=1",
        )
    if not arguments.is_own_command:
        _warn_of_gpus(here, layout)
    return _without_spare(here, layout)


def _is_rank_per_gpu(here: Surroundings, arguments: Arguments) -> bool:
    """A launcher of the user's own has one task a node to start its ranks in."""
    if not here.slurm.has_plain_gpus:
        return False
    return not arguments.is_own_command or foreign.launcher(arguments.words[1:]) is None


def _count_in_place(here: Surroundings) -> int:
    if here.is_under_slurm:
        return here.slurm.num_tasks_in_place
    return count_gpus(here.environ) or 1


def count_gpus(environ: Mapping[str, str]) -> int:
    """Count the GPUs that this script sees."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len(visible.rstrip(",").split(",")) if visible else 0
    return len(glob.glob("/dev/nvidia[0-9]*"))


def _warn_of_gpus(here: Surroundings, layout: Layout) -> None:
    """Tell of a forgotten option, by which our ranks have no GPU, or GPUs no rank."""
    gpus = here.slurm.gpus_on_node
    if not here.slurm.has_gpus:
        if re.search(r" Gres=\S*gpu", here.slurm.node_info(here.node) or ""):
            info(
                "warning: this job has no GPU, on a node that has some: give --gpus-per-node to"
                " train on them"
            )
    elif re.fullmatch("[0-9]{1,3}", gpus) and int(gpus) > layout.num_local_ranks:
        info(
            f"warning: {gpus} GPUs on a node for {layout.num_local_ranks} of our ranks: give"
            f" --ntasks-per-node={gpus}, or fewer GPUs"
        )


def warn_of_cpus(here: Surroundings, cpus_of_a_rank: int) -> None:
    """Tell of a rank whose data loaders would wait for each other."""
    if cpus_of_a_rank < 2 and re.match("[1-9]", here.slurm.gpus_on_node):  # noqa: PLR2004
        info("warning: a rank with a GPU and its data loaders have 1 CPU: give --cpus-per-task")


def _without_spare(here: Surroundings, layout: Layout) -> Layout:
    """Nodes of the allocation that stay idle until another one is lost."""
    name, elastic = "DDP_SPARE_NODES", here.environ.get("DDP_ELASTIC")
    spare = here.environ.get(name) or "0"
    integer(0, layout.num_nodes - 1)(name, spare)
    if elastic:
        if spare != "0":
            raise UsageError(
                f"{name} must be unset where DDP_ELASTIC is set: what is beyond its MAX is spare",
                spare,
                f"unset {name}",
            )
        name = "DDP_ELASTIC"
        _, most = bounds(node_range(layout.num_nodes)(name, elastic))
        spare = str(max(layout.num_nodes - most, 0))
    elif spare == "0":
        return layout
    if not layout.is_even:
        raise UsageError(
            f"{name} needs as many tasks on every node",
            f"{layout.num_tasks} on {layout.num_nodes}",
            "give --ntasks-per-node, or unset it",
        )
    return layout.on(layout.num_nodes - int(spare))


def num_cpus(here: Surroundings) -> int:
    """CPUs of a node; those of this machine where Slurm does not say."""
    return here.slurm.cpus_on_node or len(os.sched_getaffinity(0))
