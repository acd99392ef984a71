"""The rendezvous: a store at rank 0, each rank's place, and the process group of all."""

from __future__ import annotations

import contextlib
import json
import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import distributed as dist

from rundir.text import counted, listed
from trainer.distributed.device import hardware_of
from trainer.distributed.rendezvous_socket import is_agents_store, serves_store
from trainer.errors import RunFailedError

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

    from trainer.environment import Ranks

Backend = Literal["none", "gloo", "nccl"]
_RENDEZVOUS_TIMEOUT = timedelta(minutes=15)
"""Some nodes may unpack an image of many GB when others have done so."""
_LEAVING_TIMEOUT = timedelta(seconds=10)
_NUM_NAMED = 8
"""Of absent ranks."""


class Place(NamedTuple):
    """Where a rank is."""

    node: str
    gpu: str = ""
    """UUID of its GPU or MIG instance; "" without one."""
    slot: str = ""
    """Where on which machine that GPU is plugged in."""


def open_process_group(
    ranks: Ranks,
    device: torch.device,
    env: MutableMapping[str, str],
    node: str,
    rendezvous_socket: socket.socket | None = None,
) -> tuple[Backend, list[str]]:
    """Open the group of all ranks; return its backend, and each rank's node.

    `rendezvous_socket` is what `open_rendezvous_socket` gave; the store owns it from here on.
    GLOO_SOCKET_IFNAME is set in `env` where it is not. Raises RunFailedError when the others cannot
    be reached.
    """
    try:
        store = dist.TCPStore(  # type: ignore[attr-defined] # public, though not in __all__
            ranks.master_addr,
            ranks.master_port,
            ranks.world_size,
            is_master=serves_store(ranks, env),
            timeout=_RENDEZVOUS_TIMEOUT,
            wait_for_workers=False,  # it could not name the ranks that did not arrive
            master_listen_fd=rendezvous_socket.detach() if rendezvous_socket else None,
        )
        # torchrun's store outlives a restart of the ranks: keys of an attempt of their own. A store
        # of ours does not, and agents of several nodes may count restarts differently.
        attempt = env.get("TORCHELASTIC_RESTART_COUNT", "0") if is_agents_store(env) else "0"
        spaced = dist.PrefixStore(  # type: ignore[attr-defined] # the same
            f"trainer/{attempt}", store
        )
        places = _exchange_places(spaced, ranks, Place(node, *hardware_of(device, node)))
    except (dist.DistError, RuntimeError, ValueError) as error:
        # Seldom the user's mistake: the port was free when it was chosen, and nodes come and go.
        raise RunFailedError.of(
            f"rendezvous at {ranks.master_addr}:{ranks.master_port}",
            rule=f"be each of {counted(ranks.world_size, 'rank')} reaches rank 0 there",
            found=str(error).splitlines()[0],
            remedy="check MASTER_ADDR and MASTER_PORT, and whether every rank was started",
        ) from error
    name_interface(ranks, env)
    try:
        check_places(places)
    except RunFailedError:
        _end_store_together(spaced, ranks)
        raise
    backend = choose_backend(places)
    _connect(spaced, ranks, device, backend)
    return backend, [place.node for place in places]


def _exchange_places(store: Any, ranks: Ranks, own: Place) -> list[Place]:  # noqa: ANN401 -- torch's Store
    """Publish this rank's place; return each rank's. Rank 0 collects them: it serves the store.

    Raises RunFailedError on rank 0, with the ranks that did not arrive; torch's errors on others.
    """
    store.set(f"place/{ranks.rank}", json.dumps(own))
    if not ranks.is_main:
        return [Place(*place) for place in json.loads(store.get("places"))]
    keys = [f"place/{rank}" for rank in range(ranks.world_size)]
    try:
        places = [Place(*json.loads(place)) for place in store.multi_get(keys)]
    except dist.DistError as error:
        absent = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
        limit_min = _RENDEZVOUS_TIMEOUT.total_seconds() / 60
        raise RunFailedError.of(
            f"rendezvous at {ranks.master_addr}:{ranks.master_port}",
            rule=f"bring every rank within {limit_min:.0f} min",
            found=f"nothing of rank {listed(absent, _NUM_NAMED)}",
            remedy="look at their logs: without one, their container is still starting; "
            "else see whether they reach MASTER_ADDR and MASTER_PORT",
        ) from error
    store.set("places", json.dumps(places))
    return places


def _connect(store: Any, ranks: Ranks, device: torch.device, backend: Backend) -> None:  # noqa: ANN401 -- torch's Store
    """Open the group of all ranks. Raises RunFailedError where a backend cannot be started.

    The timeout is torch's, half an hour: a watchdog (DDP_HANG_TIMEOUT) sees a hang long before, and
    reports where; this one ends a run without one.
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
        raise RunFailedError.of(
            f"{backend} between {counted(ranks.world_size, 'rank')}",
            rule="start",
            found=_ends(error),
            remedy=f"{level}look at {backend.upper()}_SOCKET_IFNAME",
        ) from error


def _ends(error: Exception) -> str:
    """Return the first line of an error and the last: NCCL puts the cause there."""
    lines = str(error).splitlines() or [type(error).__name__]
    return ": ".join(dict.fromkeys((lines[0], lines[-1])))


def _end_store_together(store: Any, ranks: Ranks) -> None:  # noqa: ANN401 -- torch's Store
    """Let the rank that serves the store end last: what the others have not read goes with it."""
    with contextlib.suppress(dist.DistError, RuntimeError):
        store.set(f"read/{ranks.rank}", "")
        if ranks.is_main:
            store.wait([f"read/{r}" for r in range(ranks.world_size)], _LEAVING_TIMEOUT)


def name_interface(ranks: Ranks, env: MutableMapping[str, str]) -> None:
    """Let gloo use the interface that leads to rank 0: its own guess goes by the host name."""
    if env.get("GLOO_SOCKET_IFNAME"):
        return
    import psutil  # noqa: PLC0415 -- only several ranks need it

    address = _local_address(ranks.master_addr, ranks.master_port)
    owners = [
        name
        for name, entries in psutil.net_if_addrs().items()
        if address in [entry.address for entry in entries]
    ]
    is_loopback = address is not None and (address.startswith("127.") or address == "::1")
    several_nodes = ranks.local_world_size < ranks.world_size
    if owners and not (is_loopback and several_nodes):
        env["GLOO_SOCKET_IFNAME"] = owners[0]


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


def choose_backend(places: Sequence[Place]) -> Backend:
    """Choose from each rank's place: the same on all ranks.

    NCCL wants a GPU to each rank, and refuses two of one slot, which MIG instances have; ranks that
    share one talk over gloo.
    """
    slots = {place.slot for place in places}
    gpus = {place.gpu for place in places}
    return "nccl" if all(gpus) and len(gpus) == len(slots) == len(places) else "gloo"


def check_places(places: Sequence[Place]) -> None:
    """Raise RunFailedError, on all ranks alike, if some of them see no GPU while others do.

    They could only train over gloo then, a hundred times slower, without an error.
    """
    without = [f"{rank} on {place.node}" for rank, place in enumerate(places) if not place.gpu]
    if without and len(without) < len(places):
        raise RunFailedError.of(
            "GPUs",
            rule="be seen by every rank, or by none",
            found=f"none on rank {listed(without, _NUM_NAMED)}",
            remedy="look at nvidia-smi and the driver on these nodes, or exclude them (--exclude)",
        )
