"""By what a microbatch's loss is divided: a step's loss is one mean over all that counts.

Where every sample counts alike, a microbatch's own mean divided by the number of microbatches is
right, and ranks are averaged by the reduction. Where targets count or not (a text that is filled
up, a part that is not to be learned), a mean of means would give the targets of a short microbatch
more weight: so they are counted first, over all microbatches and ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import distributed as dist

from trainer.beat import DATA

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from trainer.parts import Parts

    Next = Callable[[], tuple[Tensor, Tensor]]


class Normaliser(Protocol):
    """Told of each step; asked for each of its losses."""

    def begin(self, following: Next) -> Next:
        """Begin a step, whose microbatches `following` returns; return from where to take them."""

    def share(self, loss: Tensor) -> Tensor:
        """Return a microbatch's part of the step's loss; its mean over ranks is the step's."""


class Alike:
    """Every sample counts alike: nothing to count, nothing to send."""

    def __init__(self, num_microbatches: int) -> None:
        self._num_microbatches = num_microbatches

    def begin(self, following: Next) -> Next:
        """Take them as they come."""
        return following

    def share(self, loss: Tensor) -> Tensor:
        """Return the loss's part of the mean over microbatches."""
        return loss / self._num_microbatches if self._num_microbatches > 1 else loss


class Counted:
    """A loss is a sum over the targets that count; all of the step's are counted beforehand."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._total = torch.ones((), device=parts.mesh.device)
        self._summing: dist.Work | None = None
        self._factor: Tensor | None = None
        """None: this step's has not been asked for yet."""

    def begin(self, following: Next) -> Next:
        """Take all microbatches of the step, and count; ranks add up while they go forward."""
        parts = self._parts
        microbatches = [following() for _ in range(parts.plan.num_microbatches)]
        self._wait()  # for the last step's, if no loss was asked of this stage of a pipeline
        counts = [parts.workload.num_valid(targets) for _, targets in microbatches]
        self._total = torch.stack([count for count in counts if count is not None]).sum()
        self._factor = None
        if parts.mesh.is_distributed:
            parts.beat.meet(DATA)
            self._summing = dist.all_reduce(self._total, async_op=True)
        return iter(microbatches).__next__

    def share(self, loss: Tensor) -> Tensor:
        """Return a sum's part of the mean over all targets that count."""
        if self._factor is None:
            self._wait()
            # The reduction of the gradients divides by the number of ranks with samples of their
            # own, which this undoes: ranks of cp are averaged, too, each with positions of its own.
            # Ranks with the same samples, those of tp, are counted in both, here as there.
            self._factor = self._parts.mesh.ranks.world_size / self._total.clamp(min=1)
        return loss * self._factor

    def _wait(self) -> None:
        """Wait for the ranks' sum, once. No device is waited for."""
        if self._summing is not None:
            self._summing.wait()
            self._summing = None


def choose_normaliser(parts: Parts) -> Normaliser:
    """Count only for a workload that says what counts."""
    if parts.workload.counts_targets:
        return Counted(parts)
    return Alike(parts.plan.num_microbatches)
