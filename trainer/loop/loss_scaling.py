"""Loss scaling: what a microbatch's loss is divided by, so that a step's is one mean.

Where every sample counts alike, a microbatch's own mean divided by the number of microbatches is
right, and ranks are averaged by the reduction. Where targets count or not (a text that is filled
up, a part that is not to be learned), a mean of means would give the targets of a short microbatch
more weight: their number in the whole step is known from the samples, or else they are counted
first, over all microbatches and ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import distributed as dist

from trainer.telemetry.heartbeat import DATA

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from trainer.loop.components import Components

    NextMicrobatch = Callable[[], tuple[Tensor, Tensor]]


class LossScaling:
    """Is given each step, and scales each of its losses. Here every sample counts alike."""

    def __init__(self, components: Components) -> None:
        self._components = components
        self._num_microbatches = components.plan.num_microbatches

    def begin(self, step: int, next_microbatch: NextMicrobatch) -> NextMicrobatch:  # noqa: ARG002 -- for subclasses
        """Begin a step, whose microbatches `next_microbatch` returns; return what does from now."""
        return next_microbatch

    def share(self, loss: Tensor) -> Tensor:
        """Return a microbatch's part of the step's loss; its mean over ranks is the step's."""
        return loss / self._num_microbatches if self._num_microbatches > 1 else loss


class CountedTargets(LossScaling):
    """A loss is a sum over the targets that count.

    The step's samples give their number, and then nothing is sent; else all are counted beforehand.
    """

    def __init__(self, components: Components) -> None:
        super().__init__(components)
        self._total = torch.ones((), device=components.mesh.device)
        self._summing: dist.Work | None = None
        self._factor: float | Tensor | None = None
        """None: this step's has not been asked for yet."""

    def begin(self, step: int, next_microbatch: NextMicrobatch) -> NextMicrobatch:
        """Take them as they come, or all of the step, whose ranks add up while they go forward."""
        components, layout = self._components, self._components.mesh.layout
        if components.workload.counts_all_but_ignored:
            at = divmod(step - 1, components.steps_per_epoch)
            known = components.train.num_targets(*at)
            if known is not None:
                # The reduction of the gradients divides by the number of ranks with targets of
                # their own, which this undoes: ranks of cp are averaged, too, each with its own.
                self._factor = layout.dp_size * layout.cp / known
                return next_microbatch
        microbatches = [next_microbatch() for _ in range(self._num_microbatches)]
        self._wait()  # for the last step's, if no loss was asked of this stage of a pipeline
        counts = [components.workload.num_valid(targets) for _, targets in microbatches]
        self._total = torch.stack([count for count in counts if count is not None]).sum()
        self._factor = None
        if components.mesh.is_distributed:
            components.heartbeat.collective(DATA)
            self._summing = dist.all_reduce(self._total, async_op=True)
        return iter(microbatches).__next__

    def share(self, loss: Tensor) -> Tensor:
        """Return a sum's part of the mean over all targets that count."""
        if self._factor is None:
            self._wait()
            # As above; ranks with the same targets, those of tp and pp, are counted in both.
            self._factor = self._components.mesh.ranks.world_size / self._total.clamp(min=1)
        return loss * self._factor

    def _wait(self) -> None:
        """Wait for the ranks' sum, once. No device is waited for."""
        if self._summing is not None:
            self._summing.wait()
            self._summing = None


def choose_loss_scaling(components: Components) -> LossScaling:
    """Count only for a workload with targets that count or not."""
    kind = CountedTargets if components.workload.counts_targets else LossScaling
    return kind(components)
