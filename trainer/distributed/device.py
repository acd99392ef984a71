"""Where this rank computes: one GPU, or the CPU where it was given none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rundir import gpus
from trainer.errors import RunFailedError, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from trainer.environment import Ranks

_DEVICES = Path("/dev")
"""With NVIDIA's driver nvidiactl is there, also in a container that did not get its libraries."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def choose_device(ranks: Ranks, env: MutableMapping[str, str]) -> torch.device:
    """Take a GPU, the CPU where there is none. Raises RunFailedError for one that is unusable.

    Of several MIG instances CUDA shows a process the first alone: each rank leaves its own in
    CUDA_VISIBLE_DEVICES of `env`.
    """
    words = gpus.visible(env.get("CUDA_VISIBLE_DEVICES", ""))
    if words and words[0].startswith("MIG-"):
        env["CUDA_VISIBLE_DEVICES"] = words[ranks.local_rank % len(words)]
    num_gpus = torch.cuda.device_count()
    if num_gpus == 0:
        return torch.device("cpu")
    device = torch.device("cuda", ranks.local_rank % num_gpus)
    try:
        torch.cuda.set_device(device)
    except RuntimeError as error:  # such as one that is lost, or another program's alone
        raise RunFailedError.of(
            f"GPU {device.index} of {num_gpus}",
            rule=f"be usable by rank {ranks.rank}",
            found=str(error).splitlines()[0],
            remedy="look at nvidia-smi on this node, or exclude it (--exclude)",
        ) from error
    return device


def uuid_of(device: torch.device) -> str:
    """Return a GPU's UUID, or that of the MIG instance that CUDA shows; "" for the CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


def hardware_of(device: torch.device, node: str) -> tuple[str, str]:
    """Return a GPU's UUID, and where on which machine it is plugged in; "" both for the CPU.

    MIG instances have a UUID each, and are plugged in where their GPU is. A machine is what NCCL
    takes for one: a name and a boot.
    """
    if device.type != "cuda":
        return "", ""
    gpu: Any = torch.cuda.get_device_properties(device)
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:
        boot = ""
    slot = f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}"
    return uuid_of(device), f"{node} {boot} {slot}"


def has_driver() -> bool:
    """Whether this node has NVIDIA's driver; a virtual cluster has GPUs to give, and none."""
    return (_DEVICES / "nvidiactl").exists()


def lost_gpus(env: Mapping[str, str], cuda_version: str | None) -> str | None:
    """Explain why a rank that has GPUs sees none; None where it was given none either.

    `cuda_version` is what torch was built with. Where none are named, those that can be opened
    count.
    """
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible in ("", "-1", "NoDevFiles"):  # the last one is Slurm's word for none
        return None
    if visible is not None:
        given = f"GPUs were given (CUDA_VISIBLE_DEVICES={visible})"
    elif cuda_version and (usable := _usable_gpu()):
        given = f"a GPU is there ({usable})"
    else:
        return None
    return f"{given}, {'CUDA sees none' if cuda_version else 'this torch is built without CUDA'}"


def lost_gpus_error(lost: str) -> UserError:
    """Refuse hours on the CPU of a GPU node, with the reason that CUDA gives."""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call] # torch's
        reason = ""
    except (RuntimeError, AssertionError) as error:  # the latter: built without CUDA
        reason = f": {str(error).splitlines()[0]}"
    return UserError(
        "GPUs",
        rule="be seen by CUDA where they were given and the node has a driver",
        found=lost + reason,
        remedy="is the driver in the container, and new enough (docs/image.md)? "
        "CUDA_VISIBLE_DEVICES= takes the CPU",
    )


def _usable_gpu() -> Path | None:
    """Find the file of a GPU that this process may open: a device cgroup hides those of others."""
    files = sorted(_DEVICES.glob("nvidia[0-9]*"))
    return next((gpu for gpu in files if os.access(gpu, os.R_OK | os.W_OK)), None)


def be_deterministic(env: MutableMapping[str, str]) -> None:
    """Let torch take deterministic algorithms only; an operation that has none then raises.

    Before the GPU is first used: `env`, this process's own, sets a fixed workspace for cuBLAS, and
    NCCL not to let switches add up, which they do in any order. Of torch's two backends for NCCL
    only the older one always sets that itself, and neither of them names NVLSTree.
    """
    env.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    env.setdefault("NCCL_ALGO", "^NVLS,NVLSTree")
    torch.use_deterministic_algorithms(mode=True)
    torch.backends.cudnn.benchmark = False
