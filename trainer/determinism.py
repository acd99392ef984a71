"""The same bits from a GPU every time, for who pays with speed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import MutableMapping


def be_deterministic(env: MutableMapping[str, str]) -> None:
    """Let torch take deterministic algorithms only; an operation that has none then raises.

    Before the GPU is first used: `env`, this process's own, tells cuBLAS of a fixed workspace.
    """
    env.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(mode=True)
    torch.backends.cudnn.benchmark = False
