"""Activation checkpointing: the backward computes again what the forward did not keep."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

if TYPE_CHECKING:
    from torch import nn

_DEAR = (
    "mm",
    "addmm",
    "bmm",
    "_scaled_mm",  # of 8 bits
    "_scaled_mm_v2",
    "convolution",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_efficient_attention_forward",  # what cp's masks call on a GPU in float32
    "ring_attention",
)
"""Operations of torch.ops.aten whose results `selective` keeps: nearly all the time is theirs.

Those that this torch has: some are of some versions only. And our own ring attention, if cp has
brought it here."""


def recompute(block: nn.Module, how: Literal["full", "selective"], *, draws: bool = True) -> None:
    """Let a block keep its input only, or, with `selective`, what is dear to compute.

    Where its forward `draws` random numbers, it keeps the generators' states, too. The forward is
    replaced in place: a wrapping module would change the parameters' names.
    """
    options: dict[str, Any] = {"preserve_rng_state": draws}
    if how == "selective":
        homes = (torch.ops.aten, torch.ops.trainer)
        kept = {getattr(ops, n).default for ops in homes for n in _DEAR if hasattr(ops, n)}
        policy = partial(_policy, kept)
        options["context_fn"] = partial(create_selective_checkpoint_contexts, policy)
    forward = block.forward
    block.forward = partial(checkpoint, forward, use_reentrant=False, **options)


def _policy(
    kept: set[object], _context: object, operation: object, *_args: object, **_kwargs: object
) -> CheckpointPolicy:
    if operation in kept:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE
