"""The ranks as they talk about checkpoints, over a gloo group of their own.

Nothing that a checkpoint needs to say can then come between the training's own messages, from
whichever thread it is said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from torch import distributed as dist

if TYPE_CHECKING:
    from trainer.distributed.mesh import Mesh

T = TypeVar("T")


class Peers(Protocol):
    """Passes small picklable values between ranks. Points of synchronisation, all of them."""

    rank: int
    world_size: int
    group: Any
    """The process group, None with one rank."""

    def gather(self, value: T) -> list[T]:
        """Return every rank's value, by rank, on every rank."""
        ...

    def share(self, value: T) -> T:
        """Return rank 0's value."""
        ...


class Alone:
    """One rank: the null object."""

    rank = 0
    world_size = 1
    group = None

    def gather(self, value: T) -> list[T]:
        """Return the one value."""
        return [value]

    def share(self, value: T) -> T:
        """Return it."""
        return value


class Group:
    """Several ranks; all of them build it at the same point."""

    def __init__(self, mesh: Mesh) -> None:
        self.rank = mesh.ranks.rank
        self.world_size = mesh.ranks.world_size
        self.group: Any = dist.new_group(backend="gloo")

    def gather(self, value: T) -> list[T]:
        """Return every rank's value, by rank."""
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def share(self, value: T) -> T:
        """Return rank 0's value."""
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self.group)
        return values[0]


def open_peers(mesh: Mesh) -> Peers:
    """Meet the others, if there are any."""
    return Group(mesh) if mesh.is_distributed else Alone()
