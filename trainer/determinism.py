"""The same bits from a GPU every time, for who pays with speed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import MutableMapping


def be_deterministic(env: MutableMapping[str, str]) -> None:
    """Let torch take deterministic algorithms only; an operation that has none then raises.

    Before the GPU is first used: `env`, this process's own, tells cuBLAS of a fixed workspace, and
    NCCL not to let switches add up, which they do in any order. Of torch's two backends for NCCL
    only the older one always says that itself, and neither of them names NVLSTree.
    """
    env.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    env.setdefault("NCCL_ALGO", "^NVLS,NVLSTree")
    torch.use_deterministic_algorithms(mode=True)
    torch.backends.cudnn.benchmark = False
