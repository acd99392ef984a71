"""The processes of a run as one: device, threads, axes, exact reductions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist

from rundir import procfs
from rundir.text import counted
from trainer.distributed.device import choose_device, has_driver, lost_gpus, lost_gpus_error
from trainer.distributed.rendezvous import open_process_group
from trainer.environment import whole_number
from trainer.parallel.layout import AXES, Layout
from trainer.text import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping, Sequence
    from socket import socket

    from torch import Tensor

    from trainer.distributed.rendezvous import Backend
    from trainer.environment import Ranks


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """Where this process computes and how it communicates with the others.

    Tensors on the CPU are always reduced over gloo, without touching a GPU.
    """

    ranks: Ranks
    device: torch.device
    backend: Backend
    num_threads: int
    nodes: tuple[str, ...] = ("",)
    """Each rank's node, by rank."""
    layout: Layout = field(default_factory=Layout)
    device_mesh: Any = None
    """The axes as torch has them, a DeviceMesh; None where no rank holds only a part."""

    @property
    def dp_rank(self) -> int:
        """Which share of the samples is this rank's; ranks that share layers have the same."""
        return self.layout.dp_rank(self.ranks.rank)

    @property
    def pp_group(self) -> dist.ProcessGroup | None:
        """The ranks that have the other layers of this one's model; None: it has all."""
        return self.device_mesh.get_group("pp") if self.layout.pp > 1 else None

    @property
    def is_distributed(self) -> bool:
        """Whether there is more than one rank."""
        return self.backend != "none"

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sum each value over all ranks, in float64. A point of synchronisation of the CPUs."""
        return self._begin(values, dist.ReduceOp.SUM)()

    def gather(self, value: float) -> list[float]:
        """Return every rank's value, by rank. A point of synchronisation of the CPUs."""
        places = [0.0] * self.ranks.world_size
        places[self.ranks.rank] = value
        return self.sum(places)

    def sum_over_samples(self, values: Sequence[float]) -> list[float]:
        """Sum what was counted on samples: once, where several ranks have the same ones."""
        is_leader = self.layout.is_samples_leader(self.ranks.rank)
        return self.sum(values if is_leader else [0.0] * len(values))

    def max(self, values: Sequence[float]) -> list[float]:
        """Take each value's maximum over all ranks. A point of synchronisation of the CPUs."""
        return self._begin(values, dist.ReduceOp.MAX)()

    def max_later(self, values: Sequence[float]) -> Callable[[], list[float]]:
        """Begin as `max` does, and return what waits for the answer, which all ranks must call."""
        return self._begin(values, dist.ReduceOp.MAX)

    def barrier(self) -> None:
        """Wait until all ranks are here.

        By a reduction on the CPUs: torch's own barrier takes NCCL where there are GPUs, and waits
        for all that is under way on them.
        """
        self.max([0.0])

    def _begin(
        self, values: Sequence[float], op: dist.ReduceOp.RedOpType
    ) -> Callable[[], list[float]]:
        if not self.is_distributed:
            return lambda: list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        work = dist.all_reduce(tensor, op, async_op=True)

        def answer() -> list[float]:
            work.wait()
            values: list[float] = tensor.tolist()
            return values

        return answer

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Give every rank the values of rank 0, in place; those of other layers, of their first."""
        if self.layout.pp > 1:
            axes = [axis for axis in self.device_mesh.mesh_dim_names if axis != "pp"]
            for group in map(self.device_mesh.get_group, axes):
                for tensor in tensors:
                    dist.broadcast(tensor, group=group, group_src=0)
        elif self.is_distributed:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def warn(self, text: object) -> None:
        """Write one line to the log, once for all ranks."""
        if self.ranks.is_main:
            warn(text)

    def describe(self) -> str:
        """Describe ranks, device, backend and threads."""
        ranks = f"{counted(self.ranks.world_size, 'rank')} on {self.device.type}"
        over = f" over {self.backend}" if self.is_distributed else ""
        if self.layout.is_sharded:
            over += f" ({self.layout.describe()})"
        return f"{ranks}{over}, {counted(self.num_threads, 'thread')} each"


def open_mesh(
    ranks: Ranks,
    env: MutableMapping[str, str],
    node: str = "",
    layout: Layout | None = None,
    rendezvous_socket: socket | None = None,
) -> Mesh:
    """Choose device, backend and threads, and open the process group; `node` is this rank's.

    `rendezvous_socket` is what `open_rendezvous_socket` gave. `env` is read for OMP_NUM_THREADS,
    and GLOO_SOCKET_IFNAME is set in it where it is not. Raises RunFailedError when the others
    cannot be reached; and UserError, on all ranks alike, where a job was given GPUs of a node with
    a driver and CUDA sees none: hours on the CPU of a GPU node would be wasted. Without a driver,
    as on a virtual cluster, that is a warning.
    """
    num_threads = choose_num_threads(
        env, num_cpus=procfs.num_cpus(), local_world_size=ranks.local_world_size
    )
    torch.set_num_threads(num_threads)
    device = choose_device(ranks, env)
    lost = lost_gpus(env, torch.version.cuda) if device.type == "cpu" else None
    if lost and ranks.is_main and not has_driver():
        warn(f"{lost}: training on the CPU")
    backend: Backend = "none"
    nodes = [node]
    if ranks.world_size > 1:
        backend, nodes = open_process_group(ranks, device, env, node, rendezvous_socket)
    layout = layout or Layout(dp_replicate=ranks.world_size)
    mesh = Mesh(
        ranks=ranks,
        device=device,
        backend=backend,
        num_threads=num_threads,
        nodes=tuple(nodes),
        layout=layout,
        device_mesh=_open_axes(layout, device) if layout.is_sharded else None,
    )
    # Rank 0 may exit at once, as for wrong input, and with it the store of the rendezvous.
    mesh.barrier()
    if lost and has_driver():
        raise lost_gpus_error(lost)
    return mesh


def _open_axes(layout: Layout, device: torch.device) -> Any:  # noqa: ANN401 -- torch's DeviceMesh
    """Open a group for every axis that is in use, and for that along which copies are sharded.

    Gradients are averaged over dp_replicate and dp_shard, and those that are partial summed over
    tp; a norm is summed over every axis along which a tensor is split; losses and metrics go over
    all ranks (`Mesh.sum` and `sum_over_samples`). Copies are sharded over cp, too: dp_shard and cp
    are one axis here, and attention has a group of its own (`trainer/parallel/context.py`).
    """
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415 -- imports seconds

    named = {axis: getattr(layout, axis) for axis in AXES if axis != "cp"}
    named["dp_shard"] = layout.shard_size
    axes = [axis for axis, size in named.items() if axis == "dp_shard" or size > 1]
    sizes = tuple(named[axis] for axis in axes)
    return init_device_mesh(device.type, sizes, mesh_dim_names=tuple(axes))


def choose_num_threads(env: Mapping[str, str], *, num_cpus: int, local_world_size: int) -> int:
    """OMP_NUM_THREADS if the user set it, else this rank's share of the CPUs it may use."""
    chosen = whole_number(env.get("OMP_NUM_THREADS", ""))
    return max(1, num_cpus // local_world_size if chosen is None else chosen)
