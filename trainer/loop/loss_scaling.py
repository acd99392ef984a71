"""By what a microbatch's loss is divided: a step's loss is one mean over all that counts.

Where every sample counts alike, a microbatch's own mean divided by the number of microbatches is
right, and ranks are averaged by the reduction. Where targets count or not (a text that is filled
up, a part that is not to be learned), a mean of means would give the targets of a short microbatch
more weight: their number in the whole step is known from the samples, or else they are counted
first, over all microbatches and ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import distributed as dist

from trainer.telemetry.heartbeat import DATA

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from trainer.loop.components import Parts

    Next = Callable[[], tuple[Tensor, Tensor]]


class Normaliser(Protocol):
    """Told of each step; asked for each of its losses."""

    def begin(self, step: int, following: Next) -> Next:
        """Begin step `step`, whose microbatches `following` returns; return whence to take them."""

    def share(self, loss: Tensor) -> Tensor:
        """Return a microbatch's part of the step's loss; its mean over ranks is the step's."""


class Alike:
    """Every sample counts alike: nothing to count, nothing to send."""

    def __init__(self, num_microbatches: int) -> None:
        self._num_microbatches = num_microbatches

    def begin(self, step: int, following: Next) -> Next:  # noqa: ARG002 -- all are alike
        """Take them as they come."""
        return following

    def share(self, loss: Tensor) -> Tensor:
        """Return the loss's part of the mean over microbatches."""
        return loss / self._num_microbatches if self._num_microbatches > 1 else loss


class Known:
    """A loss is a sum over the targets that count, and the step's samples tell how many that are.

    So nobody counts them, and nothing is sent.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        # The reduction of the gradients divides by the number of ranks with targets of their own,
        # which this undoes: ranks of cp are averaged, too, each with positions of its own.
        self._num_ranks = parts.mesh.layout.dp_size * parts.mesh.layout.cp
        self._factor = 1.0

    def begin(self, step: int, following: Next) -> Next:
        """Take them as they come."""
        parts = self._parts
        total = parts.train.num_targets(*divmod(step - 1, parts.steps_per_epoch))
        assert total is not None  # noqa: S101 -- see `choose_normaliser`
        self._factor = self._num_ranks / total
        return following

    def share(self, loss: Tensor) -> Tensor:
        """Return a sum's part of the mean over all targets that count."""
        return loss * self._factor


class Counted:
    """A loss is a sum over the targets that count; all of the step's are counted beforehand."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._total = torch.ones((), device=parts.mesh.device)
        self._summing: dist.Work | None = None
        self._factor: Tensor | None = None
        """None: this step's has not been asked for yet."""

    def begin(self, step: int, following: Next) -> Next:  # noqa: ARG002 -- they tell themselves
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
            # As in Known; ranks with the same targets, those of tp and pp, are counted in both.
            self._factor = self._parts.mesh.ranks.world_size / self._total.clamp(min=1)
        return loss * self._factor

    def _wait(self) -> None:
        """Wait for the ranks' sum, once. No device is waited for."""
        if self._summing is not None:
            self._summing.wait()
            self._summing = None


def choose_normaliser(parts: Parts) -> Normaliser:
    """Count only for a workload that says what counts, and only what is not known."""
    if not parts.workload.counts_targets:
        return Alike(parts.plan.num_microbatches)
    if parts.workload.counts_all_but_ignored and parts.train.num_targets(0, 0) is not None:
        return Known(parts)
    return Counted(parts)
