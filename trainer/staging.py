"""Copies of tensors in host memory, made while the training waits, written while it goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


_NO_MEMORY = ("out of memory", "allocate memory")
"""Words of CUDA's, for pinned memory and the GPU's, and of torch's own allocator on the CPU."""


def is_lack_of_memory(error: BaseException) -> bool:
    """Whether an error says that there is no memory, after which all else goes on.

    Not so one of the GPU itself, such as a failed assertion in a kernel: nothing works after it.
    """
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _NO_MEMORY)


class HostCopies:
    """Buffers that are allocated once and used again.

    A first touch of memory costs a page fault for every 4 KiB, which takes longer than the copy.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def take(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy `tensors`, and return the copies. They are overwritten by the next call.

        Raises what `is_lack_of_memory` knows where the host has no room for them.
        """
        with torch.no_grad():
            copies = {name: self._copy(name, tensor) for name, tensor in tensors.items()}
        self._buffers = copies  # what is no longer asked for is freed
        if any(tensor.device.type == "cuda" for tensor in tensors.values()):
            torch.cuda.current_stream().synchronize()  # the copies to pinned memory run behind
        return copies

    def _copy(self, name: str, tensor: Tensor) -> Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            buffer = _like(tensor)
        return buffer.copy_(tensor, non_blocking=True)


def _like(tensor: Tensor) -> Tensor:
    """Return memory on the host, of the same strides, so that a copy is one sweep.

    Pinned, so that a GPU can write it by itself, where as much can be pinned.
    """
    if tensor.device.type == "cuda":
        try:
            return torch.empty_like(tensor, device="cpu", pin_memory=True)
        except RuntimeError as error:
            if not is_lack_of_memory(error):
                raise
    return torch.empty_like(tensor, device="cpu")
