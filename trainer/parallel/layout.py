"""Along which axes the ranks of a run are laid out. Pure arithmetic, no torch.

Rank order, outermost first: pp, dp_replicate, dp_shard, cp, tp. Neighbours talk most: tp twice a
layer, in the middle of the computation, so its ranks belong on one node; cp once a layer, there as
well; dp_shard once a layer, beside the computation; dp_replicate once a step; pp only from one
stage to the next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rundir.text import counted
from trainer.errors import UserError

if TYPE_CHECKING:
    from trainer.config import Config, Strategy
    from trainer.environment import Ranks

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
REST = -1
"""As the size of an axis: all ranks that the other axes leave."""
_NODE = -2
_STRATEGIES: dict[Strategy, dict[str, int]] = {
    "ddp": {"dp_replicate": REST},
    "fsdp": {"dp_shard": REST},
    "hsdp": {"dp_replicate": REST, "dp_shard": _NODE},
    "tp": {"dp_replicate": REST, "tp": _NODE},
    "pp": {"dp_replicate": REST, "pp": 2},
    "3d": {"dp_shard": REST, "tp": 2, "pp": 2},
}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The size of each axis; their product is the number of ranks."""

    dp_replicate: int = 1
    """Copies of the model, each trained on samples of its own."""
    dp_shard: int = 1
    """Ranks that share one copy out among them, each training on samples of its own."""
    cp: int = 1
    """Ranks that share a sequence."""
    tp: int = 1
    """Ranks that share each layer's matrices, and train on the same samples."""
    pp: int = 1
    """Ranks that have some of the layers each."""
    sequence_parallel: bool = False
    """Whether ranks of tp also share what lies between the matrices, by positions."""

    @property
    def world_size(self) -> int:
        """All ranks."""
        return self.pp * self.dp_replicate * self.dp_shard * self.cp * self.tp

    @property
    def dp_size(self) -> int:
        """Ranks with samples of their own."""
        return self.dp_replicate * self.dp_shard

    @property
    def is_sharded(self) -> bool:
        """Whether a rank holds only a part of the model."""
        return self.world_size > self.dp_replicate

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return where `rank` lies on each axis."""
        found = {}
        for axis in reversed(AXES):
            rank, found[axis] = divmod(rank, getattr(self, axis))
        return found

    @property
    def shard_size(self) -> int:
        """Ranks over which a copy is sharded: those of cp, too, as if they had other samples."""
        return self.dp_shard * self.cp

    def cp_groups(self) -> list[list[int]]:
        """Return the ranks that share sequences, each group in the order of cp."""
        span = self.cp * self.tp
        firsts = [rank for rank in range(self.world_size) if rank % span < self.tp]
        return [list(range(first, first + span, self.tp)) for first in firsts]

    def dp_rank(self, rank: int) -> int:
        """Return which of the `dp_size` shares of a batch is `rank`'s."""
        at = self.coordinates(rank)
        return at["dp_replicate"] * self.dp_shard + at["dp_shard"]

    def is_samples_leader(self, rank: int) -> bool:
        """Whether `rank` is the one, of those with the same samples, that they are counted on.

        Ranks of cp have other positions of theirs: what is counted by target is so on each of them.
        """
        at = self.coordinates(rank)
        return at["tp"] == 0 and at["pp"] == self.pp - 1

    def is_stage_leader(self, rank: int) -> bool:
        """Whether `rank` is the first of those that have the same layers."""
        return all(place == 0 for axis, place in self.coordinates(rank).items() if axis != "pp")

    def describe(self) -> str:
        """Name the axes that are in use."""
        used = [f"{axis} {getattr(self, axis)}" for axis in AXES if getattr(self, axis) > 1]
        return " x ".join(used) + (" with sequence parallel" if self.sequence_parallel else "")


def plan_layout(config: Config, ranks: Ranks) -> Layout:
    """Return the layout that the options ask for: the axes' product is the number of ranks.

    Raises UserError, with the numbers, where it cannot be.
    """
    named = {axis: getattr(config, axis) for axis in AXES}
    asked = {axis: size for axis, size in named.items() if size is not None}
    sizes = dict.fromkeys(AXES, 1) | _STRATEGIES[config.strategy] | asked
    sizes = {a: ranks.local_world_size if size == _NODE else size for a, size in sizes.items()}
    if REST in asked.values():  # what is given takes precedence over what follows from the strategy
        sizes = {a: 1 if s == REST and a not in asked else s for a, s in sizes.items()}
    rest = [axis for axis, size in sizes.items() if size == REST]
    if len(rest) > 1:
        names = ", ".join("--" + axis.replace("_", "-") for axis in rest)
        raise UserError(
            names,
            rule="be -1 for one axis only",
            found=len(rest),
            remedy="give numbers to the others",
        )
    fixed = math.prod(size for size in sizes.values() if size != REST)
    if rest:
        sizes[rest[0]] = max(1, ranks.world_size // fixed)
    if math.prod(sizes.values()) != ranks.world_size:
        axes = " x ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1) or "1"
        raise UserError(
            "layout",
            rule="be axes whose product is the number of ranks",
            found=f"{axes} = {math.prod(sizes.values())} with {counted(ranks.world_size, 'rank')}",
            remedy="change an axis, or give one of them -1",
        )
    return Layout(**sizes, sequence_parallel=config.sequence_parallel)
