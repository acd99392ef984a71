"""Tie the copies of a whole model together: DistributedDataParallel."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from torch import Tensor


def replicate(model: nn.Module, device: torch.device) -> nn.Module:
    """Return the model with its gradients averaged over all ranks; as it is, if it has none."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return model  # which DistributedDataParallel refuses; the check of the loss names it
    # It warns of strides that mean nothing, too: of a dimension of one, as gray images have.
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
    parallel = DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        gradient_as_bucket_view=True,
    )
    # Buffers that are no part of the state, such as tables, are the same on all ranks anyway.
    parallel.broadcast_buffers = any(n in model.state_dict() for n, _ in model.named_buffers())
    settle_buckets(parallel)
    return parallel


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
    """Take its first backward now, over nothing. All ranks call this at the same point.

    DistributedDataParallel lays its buckets out anew after the first backward, by the order in
    which gradients became ready. Where an element lies in a bucket decides the order in which three
    and more ranks add it up: so the first step after a resume would round otherwise than in a run
    that never stopped.
    """
    module = model.module
    parameters = [p for p in module.parameters() if p.requires_grad]
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
