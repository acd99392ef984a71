"""Tie the copies of a whole model together: DistributedDataParallel."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from torch.nn.parallel import DistributedDataParallel

from trainer.parallel.buckets import settle_buckets

if TYPE_CHECKING:
    import torch
    from torch import nn


def replicate(model: nn.Module, device: torch.device) -> nn.Module:
    """Return the model with its gradients averaged over all ranks."""
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
