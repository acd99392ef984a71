"""How a global batch is split over ranks and microbatches. Pure arithmetic, no torch.

Step s of an epoch trains on samples `perm[s*G:(s+1)*G]`, whatever the number of ranks.
Data-parallel rank r takes the r-th of `dp_size` equal, contiguous slices, in microbatches; ranks
that share a model's layers have the same r, and the same samples.
"""

from __future__ import annotations

from dataclasses import dataclass

from rundir.text import counted
from trainer.errors import UserError


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """Sizes in samples; nothing is rounded."""

    global_batch_size: int
    micro_batch_size: int
    """Of every microbatch but maybe the last."""
    num_microbatches: int
    dp_rank: int
    dp_size: int

    @property
    def rank_batch_size(self) -> int:
        """Samples of one step that this rank trains on."""
        return self.global_batch_size // self.dp_size

    @property
    def microbatch_sizes(self) -> list[int]:
        """Samples of each microbatch of a step on this rank; only the last may be smaller."""
        num_before = self.num_microbatches - 1
        last = self.rank_batch_size - num_before * self.micro_batch_size
        return [self.micro_batch_size] * num_before + [last]

    def steps_per_epoch(self, num_samples: int) -> int:
        """Whole global batches in `num_samples`; the rest waits for another epoch's shuffle."""
        steps = num_samples // self.global_batch_size
        if steps == 0:
            raise UserError(
                "--global-batch-size",
                rule="be at most the number of training samples",
                found=f"{self.global_batch_size} with {counted(num_samples, 'sample')}",
                remedy="lower it",
            )
        return steps

    def global_slice(self, step_in_epoch: int) -> slice:
        """Where in the epoch's permutation all samples of that step lie."""
        start = step_in_epoch * self.global_batch_size
        return slice(start, start + self.global_batch_size)

    def rank_slice(self, step_in_epoch: int) -> slice:
        """Where this rank's samples of that step lie."""
        start = self.global_slice(step_in_epoch).start + self.dp_rank * self.rank_batch_size
        return slice(start, start + self.rank_batch_size)


def plan_batches(
    *,
    global_batch_size: int,
    micro_batch_size: int | None,
    dp_rank: int,
    dp_size: int,
    may_rest: bool = False,
) -> BatchPlan:
    """Cut a global batch; without a microbatch size a rank's share is one microbatch.

    With `may_rest` a rank's last microbatch may be smaller, which a mean over microbatches' own
    means does not allow. Raises UserError when something does not divide: nothing is ever rounded.
    """
    if micro_batch_size is None or may_rest:
        if global_batch_size % dp_size:
            raise UserError(
                "--global-batch-size",
                rule="be a multiple of the number of data-parallel ranks",
                found=f"{global_batch_size} with {counted(dp_size, 'rank')}",
                remedy=f"take {_next_multiple(global_batch_size, dp_size)}",
            )
        share = global_batch_size // dp_size
        micro_batch_size = min(micro_batch_size or share, share)
    unit = micro_batch_size * dp_size
    if global_batch_size % unit and not may_rest:
        raise UserError(
            "--global-batch-size",
            rule="be a multiple of --micro-batch-size times the number of data-parallel ranks",
            found=f"{global_batch_size} with {micro_batch_size} x {dp_size}",
            remedy=f"take {_next_multiple(global_batch_size, unit)} or another microbatch",
        )
    return BatchPlan(
        global_batch_size=global_batch_size,
        micro_batch_size=micro_batch_size,
        num_microbatches=-(-global_batch_size // unit),
        dp_rank=dp_rank,
        dp_size=dp_size,
    )


def shard(num_samples: int, dp_rank: int, dp_size: int) -> range:
    """This rank's samples of an evaluation: contiguous, disjoint, none left out."""
    return range(dp_rank * num_samples // dp_size, (dp_rank + 1) * num_samples // dp_size)


def _next_multiple(value: int, unit: int) -> int:
    return -(-value // unit) * unit
