"""Which stages of a pipeline a rank has, and how much of them it keeps. Pure arithmetic, no torch.

The blocks of a model are cut into stages in their order, so that the dearest stage is as cheap as
can be: all wait for it. What comes before the blocks goes to the first stage, what comes after them
to the last. Stage s is on rank s % pp of the axis: with several stages a rank, a microbatch goes
round.
"""

from __future__ import annotations

import math
import operator
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainer.config import Config
    from trainer.parallel.layout import Layout


def num_stages(config: Config, layout: Layout) -> int:
    """Return the stages of the whole pipeline."""
    usual = 2 if config.pp_schedule == "interleaved" else 1
    return layout.pp * (config.pp_stages_per_rank or usual)


def stages_of(pp_rank: int, pp: int, count: int) -> range:
    """Return which of the `count` stages a rank has, by its place on the axis."""
    return range(pp_rank, count, pp)


def cut_evenly(blocks: Sequence[float], first: float, last: float, count: int) -> list[int]:
    """Return how many of the `blocks`, of which these are the costs, each of `count` stages has.

    Each has one at least. `first` and `last` are the costs of what the stages at the ends have
    besides. Of the cuts whose dearest stage is the cheapest, the one of the least sum of squares.
    Raises ValueError where there are fewer blocks than stages.
    """
    if not 1 <= count <= len(blocks):
        raise ValueError(f"stages must be from 1 to {len(blocks)}, the blocks; found {count}")
    sums = [0.0, *accumulate(blocks)]

    def cost(begin: int, end: int, stage: int) -> float:
        ends = first * (stage == 0) + last * (stage == count - 1)
        return sums[end] - sums[begin] + ends

    dearest, _ = _cheapest(len(blocks), count, cost, max)
    _, sizes = _cheapest(
        len(blocks),
        count,
        lambda *stage: cost(*stage) ** 2 if cost(*stage) <= dearest else math.inf,
        operator.add,
    )
    return sizes


def _cheapest(
    num_blocks: int,
    count: int,
    cost: Callable[[int, int, int], float],
    join: Callable[[float, float], float],
) -> tuple[float, list[int]]:
    """Return the least of the stages' costs, joined, and sizes that have it."""
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}  # by the blocks in the stages so far
    for stage in range(count):
        best = {
            end: min(
                (join(paid, cost(begin, end, stage)), [*sizes, end - begin])
                for begin, (paid, sizes) in best.items()
                if begin < end
            )
            for end in range(stage + 1, num_blocks - (count - stage - 1) + 1)
        }
    return best[num_blocks]


def passes_kept(config: Config, layout: Layout, pp_rank: int, num_microbatches: int) -> int:
    """Return how many passes through a stage a rank keeps at once, forward done, backward not yet.

    By torch's schedules; 1 without a pipeline. Where there is more than one stage a rank, passes
    through any of them count.
    """
    if layout.pp == 1:
        return 1
    if config.pp_schedule == "gpipe":
        return num_microbatches
    behind = layout.pp - 1 - pp_rank
    if config.pp_schedule == "1f1b":
        return min(num_microbatches, behind + 1)
    per_rank = num_stages(config, layout) // layout.pp
    in_a_round = num_microbatches // max(1, num_microbatches // layout.pp)
    ahead = (per_rank - 1) * in_a_round + 2 * behind
    return min(num_microbatches * per_rank, ahead + 1)


def layers_kept(
    config: Config, layout: Layout, pp_rank: int, num_microbatches: int, own: Sequence[int]
) -> int:
    """Return the most layers that a rank keeps at once, counted once for each pass through them.

    `own` is how many each of its stages has. By torch's schedules, as `passes_kept`: interleaved, a
    round of microbatches goes through one stage after the other, and back from the last.
    """
    num_passes = passes_kept(config, layout, pp_rank, num_microbatches)
    in_a_round = num_microbatches // max(1, num_microbatches // layout.pp)
    turns = [i // in_a_round % len(own) for i in range(num_microbatches * len(own))]
    kept = most = sum(own[turn] for turn in turns[:num_passes])
    for forward, backward in zip(turns[num_passes:], turns, strict=False):
        kept += own[forward] - own[-1 - backward]
        most = max(most, kept)
    return most
