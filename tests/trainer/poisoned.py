"""A language workload with samples that nothing can be learned from."""

import math

import torch
from torch import Tensor

from trainer.workloads.language import Language


class Poisoned(Language):
    """The loss of a sample whose targets begin with a 4 is not a number."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss."""
        bad = targets[:, 0] == ord("4")
        return super().loss(outputs, targets) * torch.where(bad.any(), math.nan, 1.0)
