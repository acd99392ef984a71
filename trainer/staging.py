"""Copies of tensors in host memory, made while the training waits, written while it goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


class HostCopies:
    """Buffers that are allocated once and used again.

    A first touch of memory costs a page fault for every 4 KiB, which takes longer than the copy.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def take(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy `tensors`, and return the copies. They are overwritten by the next call."""
        with torch.no_grad():
            copies = {name: self._copy(name, tensor) for name, tensor in tensors.items()}
        self._buffers = copies  # what is no longer asked for is freed
        if any(tensor.device.type == "cuda" for tensor in tensors.values()):
            torch.cuda.current_stream().synchronize()  # the copies to pinned memory run behind
        return copies

    def _copy(self, name: str, tensor: Tensor) -> Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            # Of the same strides, so that a copy is one sweep; pinned, so that a GPU can write it.
            is_cuda = tensor.device.type == "cuda"
            buffer = torch.empty_like(tensor, device="cpu", pin_memory=is_cuda)
        return buffer.copy_(tensor, non_blocking=True)
