"""How fast the processes of torch's group reduce together."""

from __future__ import annotations

import time

import torch
from torch import distributed as dist

_MIN_BYTES = 1 << 18
_NUM_TIMED = 3


def time_all_reduce(
    device: torch.device, world_size: int, *, long_s: float, most_bytes: int
) -> tuple[int, float]:
    """Return a size, and the best of some times for it, both the same on all processes.

    The size is the first of some that takes `long_s`, or `most_bytes`. The first message opens
    connections, and so may the first one of another size. Raises RuntimeError for a wrong sum.
    """
    num_bytes = _MIN_BYTES
    _time(device, num_bytes, world_size)
    seconds = _time(device, num_bytes, world_size)
    while seconds < long_s and num_bytes < most_bytes:
        num_bytes *= 4
        seconds = _time(device, num_bytes, world_size)
    more = (_time(device, num_bytes, world_size) for _ in range(_NUM_TIMED))
    return num_bytes, min(seconds, *more)


def bus_gbit_per_s(num_bytes: int, seconds: float, world_size: int) -> float:
    """Return the speed, as nccl-tests count it: each byte but one's own goes out twice."""
    return 8e-9 * num_bytes * 2 * (world_size - 1) / world_size / seconds


def now_s(device: torch.device) -> float:
    """Return the time at which a device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _time(device: torch.device, num_bytes: int, world_size: int) -> float:
    """Return how long it took on the slowest."""
    tensor = torch.ones(num_bytes // 4, device=device)
    took = torch.zeros(1, device=device)
    dist.all_reduce(took)  # all begin together
    began_s = now_s(device)
    dist.all_reduce(tensor)
    took[0] = now_s(device) - began_s
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    if not bool((tensor == world_size).all()):
        raise RuntimeError("an all-reduce gave a wrong sum")
    return float(took)
