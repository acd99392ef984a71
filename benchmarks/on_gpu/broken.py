"""Digits, and at one step an error that a GPU gives; where there is none, one of the CPU's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from trainer.workloads.mnist import Mnist

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from trainer.config import Config

VARIABLE = "BROKEN_BY"
"""Of the environment: which of `ERRORS`."""
_BROKEN_AT = 20
"""Losses that are computed before."""
_TOO_MUCH = 1 << 50
"""Bytes, and a distance in memory."""


class Broken(Mnist):
    """Digits."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._count = 0

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss, as long as it does."""
        self._count += 1
        if self._count > _BROKEN_AT:
            ERRORS[os.environ[VARIABLE]](outputs)
        return super().loss(outputs, targets)


def _memory(outputs: Tensor) -> None:
    torch.empty(_TOO_MUCH, dtype=torch.uint8, device=outputs.device)


def _index(outputs: Tensor) -> None:
    """Read beyond a tensor's end: on a GPU a kernel's assertion fails."""
    outputs[torch.full((4,), len(outputs) + 1, device=outputs.device)].sum().item()


def _address(outputs: Tensor) -> None:
    """Have a kernel write where no memory is, which gives Xid 31."""
    if not outputs.is_cuda:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    from benchmarks.on_gpu import far  # noqa: PLC0415 -- Triton wants a GPU

    far.store[(1,)](outputs, _TOO_MUCH)
    torch.cuda.synchronize()


ERRORS: dict[str, Callable[[Tensor], None]] = {
    "memory": _memory,
    "index": _index,
    "address": _address,
}
