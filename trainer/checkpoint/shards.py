"""What a rank holds of each tensor, which of its holders writes it, and a hash of its bits."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor

Part = tuple[str, tuple[int, ...]]
"""A tensor's name, and where its shard lies on the axes along which it is split."""

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The type whose bits are a value's, by its bytes."""
_HASH_BYTES = 6
"""A reduction in float64 carries 53 bits."""


def local_of(tensor: Any) -> Tensor:  # noqa: ANN401 -- it may be a DTensor, seconds to import
    """Return what this rank holds of a tensor."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def num_local_bytes(tensor: Tensor) -> int:
    """Return the bytes of what this rank holds of a tensor."""
    local = local_of(tensor)
    return local.numel() * local.element_size()


def part_of(name: str, tensor: Any) -> Part:  # noqa: ANN401 -- it may be a DTensor, as above
    """Return the part that a rank holds of a tensor."""
    if not hasattr(tensor, "device_mesh"):
        return name, ()
    at = zip(tensor.device_mesh.get_coordinate(), tensor.placements, strict=True)
    return name, tuple(place for place, placement in at if not placement.is_replicate())


def divide(held: Sequence[Mapping[Part, int]]) -> list[set[Part]]:
    """Give each part to one of the ranks that hold it: to the one with the least so far.

    `held` are each rank's parts and their bytes.
    """
    holders: dict[Part, list[int]] = {}
    for rank, parts in enumerate(held):
        for part in parts:
            holders.setdefault(part, []).append(rank)
    shares: list[set[Part]] = [set() for _ in held]
    loads = [0] * len(held)
    for part, ranks in holders.items():
        rank = min(ranks, key=loads.__getitem__)
        shares[rank].add(part)
        loads[rank] += held[rank][part]
    return shares


def hash_of(tensors: Iterable[Tensor]) -> int:
    """Return 48 bits that change with any bit of the values; of shards, of this rank's own.

    The sum of a tensor's bits, as integers, is one pass over it on its own device.
    """
    sums = [
        _bits(local).sum(dtype=torch.int64) for local in map(local_of, tensors) if local.numel()
    ]
    # One copy from the device, not one for each tensor.
    values = torch.stack(sums).tolist() if sums else []
    digest = hashlib.blake2b(repr(values).encode(), digest_size=_HASH_BYTES).digest()
    return int.from_bytes(digest, "little")


def _bits(tensor: Tensor) -> Tensor:
    """View values as integers, 8 bytes at a time where shape and strides let it: far faster.

    Nothing but these decides, since they alone are the same on all copies.
    """
    if not tensor.is_contiguous() or tensor.nbytes % 8:
        return tensor.view(_INTEGERS[tensor.element_size()])
    is_aligned = tensor.storage_offset() * tensor.element_size() % 8 == 0
    return (tensor if is_aligned else tensor.clone()).view(-1).view(torch.int64)
