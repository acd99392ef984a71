"""Whether messages between nodes go over the InfiniBand or EFA that the nodes have.

Where NCCL cannot use it, it takes TCP and reports nothing. So the ranks of several nodes time one
all-reduce as they begin, and it is compared with what one port of theirs could carry. Ports of
Ethernet count for nothing, as one that is meant for this looks like any other.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trainer.distributed.all_reduce import bus_gbit_per_s, time_all_reduce
from trainer.text import warn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trainer.distributed.mesh import Mesh
    from trainer.telemetry.events import EventLog

_LONG_S, _MOST_BYTES = 0.01, 64 << 20
"""Four all-reduces take at most four times that each, as the size grows by so much."""
_FAR_BELOW, _BELOW = 0.1, 0.5
"""Of one port, where a node may have eight: less is slow; and, where it is known why, this."""
_PROBLEMS = (
    "",
    "no plugin for EFA is loaded: add aws-ofi-nccl to the image",
    "no libibverbs is loaded: add libibverbs1 and ibverbs-providers to the image",
    "/dev/infiniband cannot be opened: mount it into the container",
    "it has no active port, as other nodes have: look at ibstat there",
)
_NO_PLUGIN, _NO_LIBRARY, _NO_DEVICE, _NO_PORT = range(1, len(_PROBLEMS))


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """What a node has, and what of it this process can use."""

    port_gbit_per_s: float = 0.0
    """Of its fastest active port; 0: it has none."""
    problem: int = 0
    """An index of `_PROBLEMS`."""


def read_fabric(root: Path = Path("/")) -> Fabric:
    """Examine this node once NCCL is at work: what it could load is mapped then."""
    ports = [_read_port(path) for path in root.glob("sys/class/infiniband/*/ports/*")]
    rates = {port.device: port.gbit_per_s for port in sorted(filter(None, ports))}
    if not rates:
        return Fabric(problem=_NO_PORT)
    mapped = ""
    with contextlib.suppress(OSError):
        mapped = (root / "proc/self/maps").read_text(errors="replace")
    problem = 0
    if not any(_can_open(path) for device in rates for path in _doors(root, device)):
        problem = _NO_DEVICE
    elif "libibverbs" not in mapped:
        problem = _NO_LIBRARY
    elif "libnccl-net" not in mapped and all(port.is_efa for port in ports if port):
        problem = _NO_PLUGIN
    return Fabric(port_gbit_per_s=max(rates.values()), problem=problem)


class _Port(NamedTuple):
    """An active one, of a fabric."""

    device: str
    is_efa: bool
    gbit_per_s: float


def _read_port(path: Path) -> _Port | None:
    device = path.parents[1]
    is_efa = (device / "device/driver").resolve().name == "efa"
    try:
        is_fabric = is_efa or (path / "link_layer").read_text().strip() == "InfiniBand"
        if not is_fabric or "ACTIVE" not in (path / "state").read_text():
            return None
        rate = (path / "rate").read_text()  # 400 Gb/sec (4X NDR)
        return _Port(device.name, is_efa, float(rate.split()[0]))
    except (OSError, ValueError, IndexError):
        return None


def _doors(root: Path, device: str) -> Iterator[Path]:
    """Yield the files by which programs use a device."""
    for verbs in root.glob("sys/class/infiniband_verbs/uverbs*"):
        with contextlib.suppress(OSError):
            if (verbs / "ibdev").read_text().strip() == device:
                yield root / "dev/infiniband" / verbs.name


def _can_open(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def check_fabric(mesh: Mesh, env: Mapping[str, str], events: EventLog) -> None:
    """Time messages between several nodes, record it, and warn where the fabric stays unused.

    All ranks call this. It takes less than a second.
    """
    num_nodes = len(set(mesh.nodes))
    if num_nodes == 1:
        return
    world_size = mesh.ranks.world_size
    num_bytes, seconds = time_all_reduce(
        mesh.device, world_size, long_s=_LONG_S, most_bytes=_MOST_BYTES
    )
    gbit_per_s = bus_gbit_per_s(num_bytes, seconds, world_size)
    own = read_fabric() if mesh.backend == "nccl" and not _is_refused(env) else Fabric()
    port, coded = mesh.max([own.port_gbit_per_s, own.problem * world_size + mesh.ranks.rank])
    problem, rank = divmod(int(coded), world_size)
    if not mesh.ranks.is_main:
        return
    is_slow = gbit_per_s < port * (_BELOW if problem else _FAR_BELOW)
    why = f"on {mesh.nodes[rank]} {_PROBLEMS[problem]}" if problem else "NCCL_DEBUG=INFO tells why"
    events.write(
        "network",
        nodes=num_nodes,
        bytes=num_bytes,
        seconds=seconds,
        gbit_per_s=gbit_per_s,
        port_gbit_per_s=port or None,
        problem=why if is_slow else None,
    )
    if is_slow:
        warn(
            f"warning: an all-reduce over {num_nodes} nodes went at {gbit_per_s:.3g} "
            f"Gbit/s, and one port of their fabric has {port:.3g}; {why}"
        )


def _is_refused(env: Mapping[str, str]) -> bool:
    """Whether the user wants no fabric."""
    return env.get("NCCL_IB_DISABLE", "0") not in ("", "0") or env.get("NCCL_NET") == "Socket"
