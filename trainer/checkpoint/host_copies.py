"""Copies of tensors in host memory, made while the training waits, written while it goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor


_NO_MEMORY = ("out of memory", "allocate memory")
"""Words of CUDA's, for pinned memory and the GPU's, and of torch's own allocator on the CPU."""

_USABLE_SHARE = 0.9
"""Of the memory that is free, which is an estimate of the system's."""


def is_lack_of_memory(error: BaseException) -> bool:
    """Whether an error says that there is no memory, after which all else goes on.

    Not so one of the GPU itself, such as a failed assertion in a kernel: nothing works after it.
    """
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _NO_MEMORY)


def num_local_bytes(tensor: Any) -> int:  # noqa: ANN401 -- it may be a DTensor, seconds to import
    """Return the bytes of what this rank holds of a tensor."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return int(local.numel() * local.element_size())


def num_host_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Return what copies on the host take; torch pins blocks of powers of two."""
    sizes = {name: num_local_bytes(tensor) for name, tensor in tensors.items()}
    return sum(
        1 << (size - 1).bit_length() if size and tensors[name].device.type == "cuda" else size
        for name, size in sizes.items()
    )


def lack_of_memory(nodes: Sequence[str], needed: Sequence[int], free: Sequence[int]) -> str:
    """Name the first node on which the copies do not fit, or return nothing.

    Of every rank: its node, the bytes of its copies, and those that its host or cgroup has left.
    The system kills a process that takes too much, and lets it take that first.
    """
    for node in dict.fromkeys(nodes):
        ranks = [rank for rank, name in enumerate(nodes) if name == node]
        wanted, left = sum(needed[r] for r in ranks), min(free[r] for r in ranks)
        if wanted > left * _USABLE_SHARE:
            return (
                f"no memory for copies on {node or 'this host'} ({wanted / 2**30:.1f} GiB needed, "
                f"ranks: {len(ranks)}; {left / 2**30:.1f} GiB free; give the job more, as by "
                "--mem, or take --checkpoint-mode sync)"
            )
    return ""


class HostCopies:
    """Buffers that are allocated once and used again.

    A first touch of memory costs a page fault for every 4 KiB, which takes longer than the copy.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] | None = None

    @property
    def is_new(self) -> bool:
        """Whether nothing was copied yet, so that the next call allocates all."""
        return self._buffers is None

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
        buffer = (self._buffers or {}).get(name)
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
