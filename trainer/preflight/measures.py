"""What is measured on one GPU, or on the CPUs where there is none, and between processes."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import distributed as dist

from rundir.preflight.verdict import Reading
from trainer.distributed.all_reduce import bus_gbit_per_s, now_s, time_all_reduce

if TYPE_CHECKING:
    from trainer.preflight.children import Enter

_SHARE_ALLOCATED = 0.8
"""Of the free memory: what others need must be left."""
_TILE = 512
"""The exact product of a tile of this size is computed on the CPU."""
_NUM_TILES_GPU, _NUM_TILES_CPU = 16, 2
_COPY_BYTES_GPU, _COPY_BYTES_CPU = 1 << 30, 64 << 20
_MAX_BYTES = 256 << 20
_LONG_S = 0.05
"""An all-reduce that takes as long is long enough to be timed."""
_NUM_TIMED = 3


class Group(NamedTuple):
    """Processes that reduce together, and the store of their rendezvous."""

    host: str
    port: int
    name: str
    """Of the group, among those of this store."""
    rank: int
    world_size: int
    timeout_s: float


def count_gpus(enter: Enter) -> int:
    """Count the GPUs that torch sees."""
    enter("counting GPUs")
    return torch.cuda.device_count()


def nccl_version() -> str | None:
    """Return the version of NCCL that torch was built with."""
    if torch.version.cuda is None:
        return None
    return ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call] # torch's


def examine(gpu: int | None, group: Group | None, enter: Enter) -> list[Reading]:
    """Check one GPU, then reduce with those of the same node."""
    what = "" if gpu is None else f"GPU {gpu}"
    device = torch.device("cpu") if gpu is None else torch.device("cuda", gpu)
    enter(f"{what or 'CPU'}: allocate")
    _allocate(device)
    enter(f"{what or 'CPU'}: matrix product")
    num_wrong, tflops = _product(device)
    enter(f"{what or 'CPU'}: memory bandwidth")
    gb_per_s = _bandwidth(device)
    found = [Reading("wrong_elements", num_wrong, what)]
    if gpu is None:
        found += [Reading("cpu_gflops", 1000 * tflops), Reading("cpu_gb_per_s", gb_per_s)]
    else:
        found += [Reading("tflops", tflops, what), Reading("memory_gb_per_s", gb_per_s, what)]
    if group is not None:
        enter(f"{what or 'CPU'}: all-reduce in the node")
        speed = all_reduce(gpu, group)
        name = "cpu_gbit_per_s" if gpu is None else "node_gbit_per_s"
        found += [Reading(name, speed, what)] if group.rank == 0 else []
    return found


def _allocate(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)
        free, _ = torch.cuda.mem_get_info(device)
        memory = torch.empty(int(free * _SHARE_ALLOCATED), dtype=torch.uint8, device=device)
        del memory
        torch.cuda.empty_cache()
    torch.zeros(_COPY_BYTES_CPU, dtype=torch.uint8)


def _product(device: torch.device) -> tuple[float, float]:
    """Multiply matrices of -1, 0 and 1: every order of summation gives the same exact numbers.

    Return how many elements differ from the exact product in the worst of some repetitions, and the
    speed in TFLOP/s.
    """
    is_gpu = device.type == "cuda"
    num = _NUM_TILES_GPU if is_gpu else _NUM_TILES_CPU
    random = torch.Generator().manual_seed(0)
    one, two = (torch.randint(-1, 2, (_TILE, _TILE), generator=random).float() for _ in range(2))
    dtype = torch.float16 if is_gpu else torch.float32
    exact = (num * (one @ two)).to(device, dtype).repeat(num, num)
    left, right = (tile.to(device, dtype).repeat(num, num) for tile in (one, two))
    result = left @ right
    repeats, num_wrong = (20 if is_gpu else 3), 0
    began_s = now_s(device)
    for _ in range(repeats):
        result = left @ right
    seconds = now_s(device) - began_s
    for _ in range(2):
        num_wrong = max(num_wrong, int((result != exact).sum()))
        result = left @ right
    return num_wrong, repeats * 2e-12 * (num * _TILE) ** 3 / seconds


def _bandwidth(device: torch.device) -> float:
    """Copy within the memory; GB/s read and written."""
    num_bytes = _COPY_BYTES_GPU if device.type == "cuda" else _COPY_BYTES_CPU
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = source.clone()
    began_s = now_s(device)
    for _ in range(_NUM_TIMED):
        target.copy_(source)
    return _NUM_TIMED * 2e-9 * num_bytes / (now_s(device) - began_s)


def measure_link(gpu: int | None, group: Group, enter: Enter) -> float:
    """Reduce with the processes of another node; Gbit/s on the bus."""
    enter(f"all-reduce with another node ({group.name})")
    return all_reduce(gpu, group)


def all_reduce(gpu: int | None, group: Group) -> float:
    """Reduce over a group of processes, each with its own GPU; Gbit/s on the bus.

    Raises RuntimeError if it fails, or its sum is wrong.
    """
    device = torch.device("cpu") if gpu is None else torch.device("cuda", gpu)
    if gpu is not None:
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=group.timeout_s)
    made: Any = dist.TCPStore(  # type: ignore[attr-defined] # public, though not in __all__
        group.host, group.port, is_master=False, timeout=timeout
    )
    dist.init_process_group(
        "gloo" if gpu is None else "nccl",
        store=dist.PrefixStore(group.name, made),  # type: ignore[attr-defined] # the same
        rank=group.rank,
        world_size=group.world_size,
        timeout=timeout,
    )
    num_bytes, seconds = time_all_reduce(
        device, group.world_size, long_s=_LONG_S, most_bytes=_MAX_BYTES
    )
    return bus_gbit_per_s(num_bytes, seconds, group.world_size)
