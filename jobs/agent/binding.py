"""Which CPUs a rank runs on: those beside its GPU, of what Slurm gave it.

Memory needs no policy of its own: the kernel takes it from the NUMA node of the CPU that first
touches it. The nearest network card NCCL finds itself.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from rundir import plain
from rundir.gpus import visible

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

_GPUS = "proc/driver/nvidia/gpus"
_PCI = "sys/bus/pci/devices"
_CPUS = "sys/devices/system/cpu"
_MAX_BYTES = 1 << 16


class Binding(NamedTuple):
    """Where a rank runs."""

    cpus: frozenset[int]
    numa: int | None
    """The NUMA node; None where the machine does not say."""


def choose(environ: Mapping[str, str], allowed: Collection[int], root: str = "/") -> Binding | None:
    """Choose a rank's CPUs; None where they stay as they are.

    Args:
        environ: The rank's, with the contract in it. Only a supervisor sets DDP_BIND by itself: the
            number of threads must be set, too, which else follows from the CPUs.
        allowed: The CPUs that this process may run on.
        root: Where /proc, /sys and /dev are.

    """
    if environ.get("DDP_BIND") != "1" or _is_bound(environ, len(allowed)):
        return None
    local_rank, num_ranks = int(environ["LOCAL_RANK"]), int(environ["LOCAL_WORLD_SIZE"])
    gpus = _gpus(environ, root)
    if not gpus:
        return None
    own = gpus[local_rank % len(gpus)]
    near = _parse(_read(root, _PCI, own or "-", "local_cpulist")) & set(allowed)
    if own is None or not near:
        return None
    numa = _read(root, _PCI, own, "numa_node")
    # With a single GPU visible, this rank does not see those of the others: they may share.
    ranks = range(num_ranks) if len(gpus) > 1 else range(local_rank, local_rank + 1)
    lists = [_read(root, _PCI, gpus[rank % len(gpus)] or "-", "local_cpulist") for rank in ranks]
    sharing = [rank for rank, cpus in zip(ranks, lists) if _parse(cpus) & near]
    share = _share(near, sharing.index(local_rank), len(sharing), root)
    return Binding(share, int(numa) if numa.isdecimal() else None)


@contextmanager
def bound(binding: Binding | None) -> Iterator[None]:
    """Run on these CPUs what is started within; this process itself goes on as before."""
    if binding is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, binding.cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def as_text(cpus: Collection[int]) -> str:
    """Write CPUs as the kernel does: 0-3,8."""
    ordered = sorted(cpus)
    starts = [cpu for cpu in ordered if cpu - 1 not in cpus]
    ends = [cpu for cpu in ordered if cpu + 1 not in cpus]
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in zip(starts, ends))


def _is_bound(environ: Mapping[str, str], num_allowed: int) -> bool:
    """Whether Slurm or the user has bound the task: its CPUs are not all that the step has here."""
    kind = environ.get("SLURM_CPU_BIND_TYPE", "").replace("quiet", "").strip(",:")
    on_node = environ.get("SLURM_CPUS_ON_NODE", "")
    return kind not in ("", "none") or (on_node.isdecimal() and num_allowed < int(on_node))


def _gpus(environ: Mapping[str, str], root: str) -> list[str | None]:
    """The PCI addresses of the GPUs that a rank may choose from; None: of one that is not known."""
    devices: dict[str, str] = {}  # by bus, as CUDA and NVML count; their UUIDs
    for bus in plain.names_in(os.path.join(root, _GPUS)):
        facts = _read(root, _GPUS, bus, "information")
        found = dict(re.findall(r"(?m)^([^:\n]+):[ \t]*(.*)$", facts))
        # A cgroup hides the other jobs' devices, and CUDA counts without them.
        device = os.path.join(root, f"dev/nvidia{found.get('Device Minor', '')}")
        if os.access(device, os.R_OK | os.W_OK):
            devices[bus] = found.get("GPU UUID", "")
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return list(devices)
    return [_gpu_of(word, devices, environ) for word in visible(listed)]


def _gpu_of(word: str, devices: Mapping[str, str], environ: Mapping[str, str]) -> str | None:
    if word.isdecimal():
        is_by_bus = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len(devices) == 1
        return [*devices][int(word)] if is_by_bus and int(word) < len(devices) else None
    # Of a part of a GPU (MIG) only the driver's library knows whose it is.
    found = [bus for bus, uuid in devices.items() if word[:4] == "GPU-" and uuid.startswith(word)]
    return found[0] if len(found) == 1 else None


def _share(cpus: Collection[int], index: int, num: int, root: str) -> frozenset[int]:
    """One of several even shares, by whole cores; everything where there are too few of them."""
    cores = {_siblings(cpu, root) & set(cpus) for cpu in cpus}
    ordered = sorted(cores, key=min)
    if len(ordered) < num:
        return frozenset(cpus)
    begin, end = (n * len(ordered) // num for n in (index, index + 1))
    return frozenset().union(*ordered[begin:end])


def _siblings(cpu: int, root: str) -> frozenset[int]:
    text = _read(root, _CPUS, f"cpu{cpu}", "topology/thread_siblings_list")
    return _parse(text) | {cpu}


def _parse(text: str) -> frozenset[int]:
    """Read the kernel's list of CPUs."""
    ranges = re.findall(r"(\d+)(?:-(\d+))?", text)
    return frozenset(cpu for a, b in ranges for cpu in range(int(a), int(b or a) + 1))


def _read(*path: str) -> str:
    return plain.tail(os.path.join(*path), _MAX_BYTES).strip()
