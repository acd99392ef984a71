"""The file of a snapshot: tensors one after the other, in pages that are memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from trainer.checkpoint.host_copies import local_of, num_local_bytes, part_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

_ALIGNED_BYTES = 64


def map_pages(path: Path, size: int) -> Tensor:
    """Return a file's pages as memory. All are allocated now: later, no room would be fatal."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.ftruncate(descriptor, size)
        os.posix_fallocate(descriptor, 0, size)
    finally:
        os.close(descriptor)
    return torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)


def lay_out(tensors: Mapping[str, Tensor]) -> tuple[list[dict[str, Any]], int]:
    """Give each tensor a place in the file; return them, and the file's size."""
    parts, offset = [], 0
    for name, tensor in tensors.items():
        local = local_of(tensor)
        parts.append(
            {
                "name": name,
                "place": part_of(name, tensor)[1],
                "shape": list(local.shape),
                "stride": torch.empty_like(local, device="meta").stride(),
                "dtype": name_of(local.dtype),
                "offset": offset,
                "bytes": num_local_bytes(local),
            }
        )
        offset += -(-num_local_bytes(local) // _ALIGNED_BYTES) * _ALIGNED_BYTES
    return parts, max(offset, _ALIGNED_BYTES)


def view(buffer: Tensor, part: Mapping[str, Any]) -> Tensor:
    """Return a tensor's place in the file, as a tensor of its strides: a copy is one sweep."""
    own = buffer[part["offset"] : part["offset"] + part["bytes"]]
    return own.view(getattr(torch, part["dtype"])).as_strided(part["shape"], part["stride"])


def name_of(dtype: torch.dtype) -> str:
    """Return the name by which torch has a type, such as `float32`."""
    return str(dtype).removeprefix("torch.")
