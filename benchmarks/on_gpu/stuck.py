"""Digits, and at one step a kernel that does not end: the rank waits in the driver for it.

Where there is no GPU it waits in the kernel of the operating system instead.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import torch

from benchmarks.on_gpu.broken import Broken

if TYPE_CHECKING:
    from torch import Tensor

_YEARS = 1 << 60
"""Clock cycles of a GPU."""


class Stuck(Broken):
    """Waits for ever."""

    def end(self, outputs: Tensor) -> None:
        """Wait."""
        wait_for_a_kernel(outputs)


def wait_for_a_kernel(outputs: Tensor) -> None:
    """Start one that takes years, and wait for its end."""
    if outputs.is_cuda:
        torch.cuda._sleep(_YEARS)  # type: ignore[no-untyped-call] # noqa: SLF001 -- as torch's tests
        torch.cuda.synchronize()
    while True:
        signal.pause()
