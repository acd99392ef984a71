"""How many ranks the job gets, and on which of its nodes."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING

from jobs.checks import bounds, node_range, whole_number
from jobs.messages import UsageError, info
from jobs.supervisor import foreign
from rundir import nodes as node_file
from rundir import paths, plain

if TYPE_CHECKING:
    from jobs.backends.base import Backend, Layout, Surroundings
    from jobs.supervisor.arguments import Arguments
    from jobs.supervisor.settings import Settings

_NAME = "DDP_NPROC_PER_NODE"


def num_local_ranks(here: Surroundings, arguments: Arguments, settings: Settings) -> int:
    """Find how many ranks of a node were asked for; 0 if none were. Raises UsageError."""
    asked = here.environ.get(_NAME)
    if asked is not None:
        return whole_number(_NAME, asked, 1, 1024)
    # A launcher of the user's own has one task a node to start its ranks in.
    is_launcher = arguments.is_own_command and foreign.launcher(arguments.words[1:])
    if is_launcher or not here.slurm.has_plain_gpus:
        return 0
    settings.note(_NAME, here.slurm.gpus_on_node, "a rank per GPU: no tasks were asked for")
    return int(here.slurm.gpus_on_node)


def count(here: Surroundings, backend: Backend, arguments: Arguments) -> Layout:
    """Count the ranks of the first attempt: spare nodes are left out. Raises UsageError."""
    layout = backend.layout()
    if backend.is_in_place:
        return layout
    if not arguments.is_own_command:
        _warn_of_gpus(here, layout)
    return _without_spare(here, layout)


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
    whole_number(name, spare, 0, layout.num_nodes - 1)
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


def order(settings: Settings, nodes: list[str], num_used: int) -> list[str]:
    """Make those spare that earlier jobs found bad, as far as there are spares; and name each."""
    if not settings.is_on("DDP_BAD_NODES"):
        return nodes
    known = node_file.remembered(_read(paths.nodes_path(settings["DDP_OUT"])), time.time())
    known = {node: known[node] for node in nodes if node in known}
    ordered = node_file.spare_last(nodes, list(known), num_used)
    for node, one in known.items():
        by = f"job {one.job}" if one.job else "hand"
        found = f"node {node} was found bad by {by} ({one.reason}), until {one.until}"
        if node in ordered[:num_used]:
            remedy = f"starting on it; sbatch --exclude={node} avoids it"
            info(f"warning: {found}, and no spare node can take its place: {remedy}")
        else:
            info(f"{found}: it stays spare")
    return ordered


def _read(path: str) -> bytes:
    try:
        with plain.open_plain(path) as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError as error:
        # Without a way to the directory itself the run has none either, which is reported.
        if os.access(os.path.dirname(path), os.X_OK):
            info(f"warning: {path} cannot be read ({error.strerror}): no node is avoided by it")
        return b""
