"""A language model whose third gradient is too large for fp16, in a single number."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import linear

from trainer.workloads.language import Language


class _OverflowsOnce(torch.autograd.Function):
    num_backwards = 0

    @staticmethod
    def forward(_ctx: Any, weight: Tensor) -> Tensor:
        return weight.view_as(weight)

    @staticmethod
    def backward(_ctx: Any, gradient: Any) -> Tensor:
        _OverflowsOnce.num_backwards += 1
        if _OverflowsOnce.num_backwards == 3:
            gradient = gradient.clone()
            is_split = isinstance(gradient, DTensor)  # along tp: one of its ranks is enough
            part = gradient.to_local() if is_split else gradient
            if not is_split or gradient.device_mesh.get_local_rank() == 0:
                part[0, 0] = torch.inf  # the first row: after the reduction, rank 0's
        return gradient


class Overflowing(Language):
    """For one microbatch a step."""

    def build_model(self) -> nn.Module:
        """Return the model, spoilt."""
        return _spoilt(super().build_model())

    def build_empty(self) -> nn.Module | None:
        """Return the same, without values."""
        model = super().build_empty()
        assert model is not None
        return _spoilt(model)


def _spoilt(model: Any) -> nn.Module:
    output = model.output
    output.forward = lambda x: linear(x, _OverflowsOnce.apply(output.weight))
    return model  # type: ignore[no-any-return] # a module for a module
