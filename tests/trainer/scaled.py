"""A language workload with a mistake in its gradient."""

from torch import Tensor

from trainer.workloads.language import Language


class Scaled(Language):
    """The loss has its value, and a gradient that is one percent too large."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss."""
        loss = super().loss(outputs, targets)
        return loss + 0.01 * (loss - loss.detach())
