"""DistributedDataParallel with the same buckets in every step of a run, whenever it was started.

It reduces gradients in buckets, and lays these out anew after the first backward, by the order in
which gradients became ready. Where an element lies in a bucket decides the order in which three and
more ranks add it up. So the first step after a resume would round otherwise than it did in a run
that never stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn.parallel import DistributedDataParallel


class _Touch(nn.Module):
    """Its backward reaches every parameter, the last one first, as a model's usually does."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__()
        self._touched = parameters  # a list: they stay the model's

    def forward(self, _nothing: None) -> Tensor:
        total = torch.zeros((), device=self._touched[0].device)
        for parameter in self._touched:
            total = total + parameter.flatten()[:1].sum().float()
        return total


def settle_buckets(model: DistributedDataParallel) -> None:
    """Let it take its first backward now, over nothing. All ranks call this at the same point."""
    module = model.module
    parameters = [p for p in module.parameters() if p.requires_grad]
    if not parameters:
        return
    model.module = _Touch(parameters)
    model.require_forward_param_sync = False  # it has none of the model's buffers to send
    try:
        # With an argument: on a GPU it moves those there, and takes the first of as many as it has.
        model(None).backward()
    finally:
        model.module = module
        model.require_forward_param_sync = True
    for parameter in parameters:
        parameter.grad = None
