"""The processes of a run as one: device, backend, process group, exact reductions."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import distributed as dist

from trainer.environment import whole_number
from trainer.errors import RunFailedError, UserError
from trainer.parallel.layout import AXES, Layout

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence

    from torch import Tensor

    from trainer.ranks import Ranks

Backend = Literal["none", "gloo", "nccl"]
_RENDEZVOUS_TIMEOUT = timedelta(minutes=15)
"""Some nodes may unpack an image of many GB when others have done so."""
_LEAVING_TIMEOUT = timedelta(seconds=10)
_DRIVER = Path("/dev/nvidiactl")
"""There with NVIDIA's driver, also in a container that did not get its libraries."""
_NUM_TOLD = 8
"""How many ranks are named."""


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """Where this process computes and how it talks to the others.

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
        """Whose samples are this rank's; those who share layers have the same ones."""
        return self.layout.dp_rank(self.ranks.rank)

    @property
    def pp_group(self) -> dist.ProcessGroup | None:
        """The ranks that have the other layers of this one's model; None: it has all."""
        return self.device_mesh.get_group("pp") if self.layout.pp > 1 else None

    @property
    def is_distributed(self) -> bool:
        """Whether there is anybody to talk to."""
        return self.backend != "none"

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sum each value over all ranks, in float64. A point of synchronisation of the CPUs."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def sum_over_samples(self, values: Sequence[float]) -> list[float]:
        """Sum what was counted on samples: once, where several ranks have the same ones."""
        speaks = self.layout.speaks_for_samples(self.ranks.rank)
        return self.sum(values if speaks else [0.0] * len(values))

    def max(self, values: Sequence[float]) -> list[float]:
        """Take each value's maximum over all ranks. A point of synchronisation of the CPUs."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def barrier(self) -> None:
        """Wait until all ranks are here.

        By a reduction on the CPUs: torch's own barrier takes NCCL where there are GPUs, and waits
        for all that is under way on them.
        """
        self.max([0.0])

    def _reduce(self, values: Sequence[float], op: dist.ReduceOp.RedOpType) -> list[float]:
        if not self.is_distributed:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, op)
        return tensor.tolist()

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

    def describe(self) -> str:
        """Say in a few words who computes where."""
        count = self.ranks.world_size
        ranks = f"{count} rank{'s' if count > 1 else ''} on {self.device.type}"
        over = f" over {self.backend}" if self.is_distributed else ""
        if self.layout.is_sharded:
            over += f" ({self.layout.describe()})"
        return f"{ranks}{over}, {self.num_threads} threads each"


def open_mesh(
    ranks: Ranks,
    env: MutableMapping[str, str],
    node: str = "",
    layout: Layout | None = None,
) -> Mesh:
    """Choose device, backend and threads, and meet the other ranks; `node` is where this one is.

    `env` is read for OMP_NUM_THREADS, and GLOO_SOCKET_IFNAME is set in it where it is not.
    Raises RunFailedError when the others cannot be reached; and UserError, on all ranks alike,
    where a job was given GPUs of a node with a driver and CUDA sees none: nobody wants hours on
    the CPU of a GPU node. Without a driver, as on a virtual cluster, that is a warning.
    """
    num_threads = choose_num_threads(
        env, num_cpus=len(os.sched_getaffinity(0)), local_world_size=ranks.local_world_size
    )
    torch.set_num_threads(num_threads)
    device = _choose_device(ranks)
    lost = lost_gpus(env, torch.version.cuda) if device.type == "cpu" else None
    if lost and ranks.is_main and not _DRIVER.exists():
        print(f"trainer: {lost}: training on the CPU", file=sys.stderr, flush=True)
    backend: Backend = "none"
    nodes = [node]
    if ranks.world_size > 1:
        backend, nodes = _open_group(ranks, device, env, node)
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
    # Rank 0 may leave at once, as for wrong input, and with it goes what the others meet at.
    mesh.barrier()
    if lost and _DRIVER.exists():
        raise UserError(
            "GPUs",
            rule="seen by CUDA where they were given and the node has a driver",
            found=lost,
            remedy="is the driver in the container (docs/image.md)? CUDA_VISIBLE_DEVICES= takes the"
            " CPU",
        )
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


def choose_backend(places: Sequence[str]) -> Backend:
    """Choose from each rank's place, its GPU's UUID or "" without one: the same on all ranks.

    NCCL wants a GPU to each rank; ranks that share one talk over gloo.
    """
    return "nccl" if all(places) and len(set(places)) == len(places) else "gloo"


def check_places(places: Sequence[str], nodes: Sequence[str]) -> None:
    """Raise RunFailedError, on all ranks alike, if some of them see no GPU while others do.

    They could only train over gloo then, a hundred times slower, and nobody would hear of it.
    """
    without = [f"{rank} on {nodes[rank]}" for rank, place in enumerate(places) if not place]
    if without and any(places):
        raise RunFailedError(
            "GPUs: every rank sees one, or none does; "
            f"found none on rank {_first_of(without)}; "
            "look at nvidia-smi and the driver on these nodes, or exclude them (--exclude)"
        )


def _first_of(ranks: Sequence[str]) -> str:
    """Name some ranks, and say how many more there are."""
    more = f" and {len(ranks) - _NUM_TOLD} more" if len(ranks) > _NUM_TOLD else ""
    return ", ".join(ranks[:_NUM_TOLD]) + more


def choose_interface(address: str, interfaces: Mapping[str, Sequence[str]]) -> str | None:
    """Name the interface that owns the local `address`."""
    return next((name for name, owned in interfaces.items() if address in owned), None)


def lost_gpus(env: Mapping[str, str], cuda_version: str | None) -> str | None:
    """Say why a rank that was given GPUs sees none; None where it was given none either.

    `cuda_version` is what torch was built with.
    """
    visible = env.get("CUDA_VISIBLE_DEVICES", "")
    if visible in ("", "-1", "NoDevFiles"):  # the last one is Slurm's word for none
        return None
    why = "CUDA sees none" if cuda_version else "this torch is built without CUDA"
    return f"GPUs were given (CUDA_VISIBLE_DEVICES={visible}), {why}"


def _choose_device(ranks: Ranks) -> torch.device:
    num_gpus = torch.cuda.device_count()
    if num_gpus == 0:
        return torch.device("cpu")
    device = torch.device("cuda", ranks.local_rank % num_gpus)
    try:
        torch.cuda.set_device(device)
    except RuntimeError as error:  # such as one that is lost, or another program's alone
        raise RunFailedError(
            f"GPU {device.index} of {num_gpus}: rank {ranks.rank} can use it; "
            f"found {str(error).splitlines()[0]}; "
            "look at nvidia-smi on this node, or exclude it (--exclude)"
        ) from error
    return device


def _open_group(
    ranks: Ranks, device: torch.device, env: MutableMapping[str, str], node: str
) -> tuple[Backend, list[str]]:
    """Meet the others; return the backend, and each rank's node."""
    try:
        store = dist.TCPStore(  # type: ignore[attr-defined] # public, though not in __all__
            ranks.master_addr,
            ranks.master_port,
            ranks.world_size,
            # Under torchrun its agent already serves the store on that port.
            is_master=ranks.rank == 0 and env.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
            timeout=_RENDEZVOUS_TIMEOUT,
            wait_for_workers=False,  # it could not say for whom it waited in vain
        )
        # torchrun's store outlives a restart of the ranks: keys of an attempt of their own.
        attempt = env.get("TORCHELASTIC_RESTART_COUNT", "0")
        spaced = dist.PrefixStore(  # type: ignore[attr-defined] # the same
            f"trainer/{attempt}", store
        )
        told = _tell_places(spaced, ranks, f"{_place(device)}\n{node}")
    except (dist.DistError, RuntimeError, ValueError) as error:
        # Seldom the user's mistake: the port was free when it was chosen, and nodes come and go.
        raise RunFailedError(
            f"rendezvous at {ranks.master_addr}:{ranks.master_port}: "
            f"all {ranks.world_size} ranks reach rank 0 there; found {str(error).splitlines()[0]}; "
            "check MASTER_ADDR and MASTER_PORT, and whether every rank was started"
        ) from error
    _name_interface(ranks, env)
    places, nodes = zip(*(text.split("\n", 1) for text in told), strict=True)
    try:
        check_places(places, nodes)
    except RunFailedError:
        _leave_together(spaced, ranks)
        raise
    backend = choose_backend(places)
    _connect(spaced, ranks, device, backend)
    return backend, list(nodes)


def _tell_places(store: Any, ranks: Ranks, own: str) -> list[str]:  # noqa: ANN401 -- torch's Store
    """Tell this rank's place; return each rank's. Rank 0 collects them: the store is its process.

    Raises RunFailedError on rank 0, with the ranks that did not come; torch's errors on the others.
    """
    store.set(f"place/{ranks.rank}", own)
    if not ranks.is_main:
        places: list[str] = json.loads(store.get("places"))
        return places
    keys = [f"place/{rank}" for rank in range(ranks.world_size)]
    try:
        told = [place.decode() for place in store.multi_get(keys)]
    except dist.DistError as error:
        absent = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
        raise RunFailedError(
            f"rendezvous at {ranks.master_addr}:{ranks.master_port}: every rank comes within "
            f"{_RENDEZVOUS_TIMEOUT.total_seconds() / 60:.0f} min; found nothing of rank "
            f"{_first_of(absent)}; look at their logs: without one, their "
            "container is still starting; else see whether they reach MASTER_ADDR and MASTER_PORT"
        ) from error
    store.set("places", json.dumps(told))
    return told


def _connect(store: Any, ranks: Ranks, device: torch.device, backend: Backend) -> None:  # noqa: ANN401 -- torch's Store
    """Open the group of all ranks. Raises RunFailedError where a backend cannot be started.

    The timeout is torch's, half an hour: a watchdog (DDP_HANG_TIMEOUT) sees a hang long before, and
    says where; this one ends what nobody watches.
    """
    try:
        # With NCCL, tensors on the CPU still travel over gloo: agreeing costs the GPU nothing.
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if backend == "nccl" else "gloo",
            store=store,
            rank=ranks.rank,
            world_size=ranks.world_size,
        )
        if backend == "nccl":  # which torch before 2.15 starts with the first message
            dist.all_reduce(torch.zeros((), device=device))
    except (dist.DistError, RuntimeError) as error:
        level = "set NCCL_DEBUG=INFO, and " if backend == "nccl" else ""
        raise RunFailedError(
            f"{backend} between {ranks.world_size} ranks: it starts; found {_ends(error)}; "
            f"{level}look at {backend.upper()}_SOCKET_IFNAME"
        ) from error


def _ends(error: Exception) -> str:
    """Return the first line of an error and the last: NCCL's says there what it was about."""
    lines = str(error).splitlines() or [type(error).__name__]
    return ": ".join(dict.fromkeys((lines[0], lines[-1])))


def _leave_together(store: Any, ranks: Ranks) -> None:  # noqa: ANN401 -- torch's Store
    """Let the rank that serves the store end last: what the others have not read goes with it."""
    with contextlib.suppress(dist.DistError, RuntimeError):
        store.set(f"read/{ranks.rank}", "")
        if ranks.is_main:
            store.wait([f"read/{r}" for r in range(ranks.world_size)], _LEAVING_TIMEOUT)


def _place(device: torch.device) -> str:
    if device.type != "cuda":
        return ""
    return str(torch.cuda.get_device_properties(device).uuid)


def _name_interface(ranks: Ranks, env: MutableMapping[str, str]) -> None:
    """Let gloo use the interface that leads to rank 0: its own guess goes by the host name."""
    if env.get("GLOO_SOCKET_IFNAME"):
        return
    import psutil  # noqa: PLC0415 -- only several ranks need it

    address = _local_address(ranks.master_addr, ranks.master_port)
    interfaces = {
        name: [entry.address for entry in entries]
        for name, entries in psutil.net_if_addrs().items()
    }
    name = choose_interface(address, interfaces) if address else None
    loopback = address is not None and (address.startswith("127.") or address == "::1")
    several_nodes = ranks.local_world_size < ranks.world_size
    if name and not (loopback and several_nodes):
        env["GLOO_SOCKET_IFNAME"] = name


def _local_address(host: str, port: int) -> str | None:
    """Return the local address from which `host` would be reached; nothing is sent."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[
            0
        ]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return None
