"""Digits, and at one step a kernel that does not end: the rank waits in the driver for it.

Where there is no GPU it waits in the kernel of the operating system instead.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import torch

from trainer.workloads.mnist import Mnist

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.config import Config

_STUCK_AT = 20
"""Losses that are computed before."""
_YEARS = 1 << 60
"""Clock cycles of a GPU."""


class Stuck(Mnist):
    """Digits."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._count = 0

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss, as long as it does."""
        self._count += 1
        if self._count > _STUCK_AT:
            wait_for_a_kernel(outputs)
        return super().loss(outputs, targets)


def wait_for_a_kernel(outputs: Tensor) -> None:
    """Start one that takes years, and wait for its end."""
    if outputs.is_cuda:
        torch.cuda._sleep(_YEARS)  # type: ignore[no-untyped-call] # noqa: SLF001 -- as torch's tests
        torch.cuda.synchronize()
    while True:
        signal.pause()
