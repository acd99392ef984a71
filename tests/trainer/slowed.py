"""A language workload on which rank 2 is slow."""

import os
import time

from torch import Tensor, nn

from trainer.workloads.language import Language


class _Slow(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.1)
        return super().forward(x)


class Slowed(Language):
    """As it is, but for a matrix of each layer."""

    def build_empty(self) -> nn.Module:
        """Return a model without memory."""
        return _slow_on_rank_2(super().build_empty())

    def build_model(self) -> nn.Module:
        """Return a model."""
        return _slow_on_rank_2(super().build_model())


def _slow_on_rank_2(model: nn.Module) -> nn.Module:
    for name, module in model.named_modules():
        if name.endswith("feed_forward.w3") and os.environ.get("RANK") == "2":
            module.__class__ = _Slow
    return model
