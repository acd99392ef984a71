"""The GPUs of pretended_gpus.py, of which one breaks: from the fourth forward on every call fails.

So CUDA behaves after an illegal memory access, until the process ends.
"""

from __future__ import annotations

import os
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from tests.trainer import pretended_gpus

_GOOD = 3
_STAY = ("is_available", "is_initialized", "device_count")
"""What CUDA answers without its device."""


def _fail(*_args: Any, **_named: Any) -> NoReturn:
    raise torch.AcceleratorError(
        "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be"
    )


def _break() -> NoReturn:
    for name in pretended_gpus._answers(1):  # noqa: SLF001 -- all that there is
        if name not in _STAY:
            setattr(torch.cuda, name, _fail)
    torch.cuda.memory._dump_snapshot = _fail  # noqa: SLF001 -- the only one
    torch.accelerator.current_stream = _fail
    for name in ("record", "synchronize", "elapsed_time"):
        setattr(pretended_gpus._Event, name, _fail)  # noqa: SLF001 -- the same
    _fail()


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(28 * 28, 10)
        self.count = 0

    def forward(self, images: Tensor) -> Tensor:
        """Map images to logits, and break the GPU of rank 0."""
        self.count += 1
        if self.count > _GOOD and os.environ["RANK"] == "0":
            _break()
        logits: Tensor = self.layer(images.flatten(1))
        return logits


class Breaking(pretended_gpus.Digits):
    """Its kernels go astray."""

    def build_model(self) -> nn.Module:
        """Return it."""
        return _Model()
