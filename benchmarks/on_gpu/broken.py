"""Digits that end at one step: by an error that a GPU gives; where there is none, by a CPU's."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import torch

from trainer.workloads.mnist import Mnist

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.config import Config

_BROKEN_AT = 20
"""Losses that are computed before."""
_TOO_MUCH = 1 << 50
"""Bytes, and a distance in memory."""


class Broken(Mnist):
    """Digits, as long as it lasts."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._count = 0

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss, as long as it does."""
        self._count += 1
        if self._count > _BROKEN_AT:
            self.end(outputs)
        return super().loss(outputs, targets)

    @abstractmethod
    def end(self, outputs: Tensor) -> None:
        """Go wrong, on the device of `outputs`."""


class Memory(Broken):
    """Asks for more than there is."""

    def end(self, outputs: Tensor) -> None:
        """Allocate it."""
        torch.empty(_TOO_MUCH, dtype=torch.uint8, device=outputs.device)


class Index(Broken):
    """Reads beyond a tensor's end."""

    def end(self, outputs: Tensor) -> None:
        """Read: on a GPU a kernel's assertion fails."""
        outputs[torch.full((4,), len(outputs) + 1, device=outputs.device)].sum().item()


class Address(Broken):
    """Has a kernel write where no memory is."""

    def end(self, outputs: Tensor) -> None:
        """Write, which gives Xid 31."""
        if not outputs.is_cuda:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        from benchmarks.on_gpu import far  # noqa: PLC0415 -- Triton wants a GPU

        far.store[(1,)](outputs, _TOO_MUCH)
        torch.cuda.synchronize()
