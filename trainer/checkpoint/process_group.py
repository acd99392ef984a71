"""The process group of checkpoints: all ranks, over gloo, apart from the training's own group.

No message about a checkpoint can then come between the training's messages, whichever thread
sends it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from torch import distributed as dist

if TYPE_CHECKING:
    from trainer.distributed.mesh import Mesh

T = TypeVar("T")


class ProcessGroup:
    """Passes small picklable values between ranks. Every call is a point of synchronisation."""

    def __init__(self, mesh: Mesh) -> None:
        """Open it; all ranks do so at the same point."""
        self.rank = mesh.ranks.rank
        self.world_size = mesh.ranks.world_size
        self.handle: Any = dist.new_group(backend="gloo") if mesh.is_distributed else None
        """torch's process group, None with one rank."""

    def gather(self, value: T) -> list[T]:
        """Return every rank's value, by rank, on every rank."""
        values: list[Any] = [value] * self.world_size
        if self.handle is not None:
            dist.all_gather_object(values, value, group=self.handle)
        return values

    def share(self, value: T) -> T:
        """Return rank 0's value."""
        values = [value]
        if self.handle is not None:
            dist.broadcast_object_list(values, src=0, group=self.handle)
        return values[0]

    def first_problem(self, problem: str) -> str:
        """Return the first rank's that has one, on every rank; empty: none has."""
        return next(filter(None, self.gather(problem)), "")
