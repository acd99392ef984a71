"""The process group of checkpoints: all ranks, over gloo, apart from the training's own group.

No message about a checkpoint can then come between the training's messages, whichever thread
sends it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from torch import distributed as dist

if TYPE_CHECKING:
    from trainer.distributed.mesh import Mesh

T = TypeVar("T")


class ProcessGroup(Protocol):
    """Passes small picklable values between ranks. Every call is a point of synchronisation."""

    rank: int
    world_size: int
    handle: Any
    """torch's process group, None with one rank."""

    def gather(self, value: T) -> list[T]:
        """Return every rank's value, by rank, on every rank."""
        ...

    def share(self, value: T) -> T:
        """Return rank 0's value."""
        ...


class SingleProcess:
    """One rank: the null object."""

    rank = 0
    world_size = 1
    handle = None

    def gather(self, value: T) -> list[T]:
        """Return the one value."""
        return [value]

    def share(self, value: T) -> T:
        """Return it."""
        return value


class GlooGroup:
    """Several ranks; all of them build it at the same point."""

    def __init__(self, mesh: Mesh) -> None:
        self.rank = mesh.ranks.rank
        self.world_size = mesh.ranks.world_size
        self.handle: Any = dist.new_group(backend="gloo")

    def gather(self, value: T) -> list[T]:
        """Return every rank's value, by rank."""
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.handle)
        return values

    def share(self, value: T) -> T:
        """Return rank 0's value."""
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self.handle)
        return values[0]


def open_group(mesh: Mesh) -> ProcessGroup:
    """Open the group of all ranks of a run."""
    return GlooGroup(mesh) if mesh.is_distributed else SingleProcess()
