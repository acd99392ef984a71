"""Which rank writes which tensors of a checkpoint: what several ranks hold, one of them writes.

torch's writer has the same rule, but finds it when all of it has been copied to the host already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer.checkpoint.host_copies import num_local_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Size, Tensor

    from trainer.checkpoint.process_group import Peers
    from trainer.distributed.mesh import Mesh

Part = tuple[str, tuple[int, ...]]
"""A tensor's name, and where its shard lies on the axes along which it is split."""


class SavePlan:
    """This rank's part of the checkpoints; all ranks hold the same kind."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._shapes: dict[str, Size] = {}
        """What the plan was made for."""
        self._own: set[str] = set()
        self.num_bytes = 0
        """Of a whole checkpoint, all ranks' parts together."""

    def own(self, tensors: Mapping[str, Tensor], peers: Peers) -> dict[str, Tensor]:
        """Return those of `tensors` that this rank writes.

        All ranks call this. They talk about what they hold the first time, and when it changes.
        """
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        (has_changed,) = self._mesh.max([shapes != self._shapes])
        if has_changed:
            held = peers.gather({_part(name, t): num_local_bytes(t) for name, t in tensors.items()})
            shares = divide(held)
            self._shapes = shapes
            self._own = {name for name, _ in shares[peers.rank]}
            self.num_bytes = sum(held[rank][p] for rank, own in enumerate(shares) for p in own)
        return {name: tensor for name, tensor in tensors.items() if name in self._own}


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


def _part(name: str, tensor: Any) -> Part:  # noqa: ANN401 -- it may be a DTensor, seconds to import
    if not hasattr(tensor, "device_mesh"):
        return name, ()
    at = zip(tensor.device_mesh.get_coordinate(), tensor.placements, strict=True)
    return name, tuple(place for place, placement in at if not placement.is_replicate())
