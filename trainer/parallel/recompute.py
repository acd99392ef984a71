"""Activation checkpointing: the backward computes again what the forward did not keep."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn

    Buffers = dict[str, Tensor]

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
    run = partial(checkpoint, use_reentrant=False, **options)
    norms = [m for m in block.modules() if isinstance(m, _BatchNorm)]
    forward = block.forward
    block.forward = partial(_count_once, run, forward, norms) if norms else partial(run, forward)
    if norms:  # else the compiler would leave such a block, whose norms get attributes, to Python
        torch._dynamo.config.skip_fwd_side_effects_in_bwd_under_checkpoint = True  # noqa: SLF001 -- torch names it in its own hint


def _count_once(
    run: Callable[..., Any],
    forward: Callable[..., Any],
    norms: Sequence[nn.Module],
    *args: Any,  # noqa: ANN401 -- the block's own
    **kwargs: Any,  # noqa: ANN401 -- the same
) -> Any:  # noqa: ANN401 -- the same
    """Run a block so that a recomputed batch counts once in the statistics of its batch norms.

    Forward and recomputation count it in the same copies, which the buffers take in between.
    """
    buffers = _buffers(norms)
    copies = [{name: tensor.clone() for name, tensor in own.items()} for own in buffers]
    result = run(_with_buffers, forward, norms, copies, *args, **kwargs)
    with torch.no_grad():
        for own, counted in zip(buffers, copies, strict=True):
            for name, tensor in own.items():
                tensor.copy_(counted[name])
    return result


def _with_buffers(
    forward: Callable[..., Any],
    norms: Sequence[nn.Module],
    copies: Sequence[Buffers],
    *args: Any,  # noqa: ANN401 -- the block's own
    **kwargs: Any,  # noqa: ANN401 -- the same
) -> Any:  # noqa: ANN401 -- the same
    buffers = _buffers(norms)
    _give(norms, copies)
    try:
        return forward(*args, **kwargs)
    finally:
        _give(norms, buffers)


def _buffers(norms: Sequence[nn.Module]) -> list[Buffers]:
    return [dict(norm.named_buffers(recurse=False)) for norm in norms]


def _give(norms: Sequence[nn.Module], buffers: Sequence[Buffers]) -> None:
    for norm, own in zip(norms, buffers, strict=True):
        for name, tensor in own.items():
            setattr(norm, name, tensor)


def _policy(
    kept: set[object], _context: object, operation: object, *_args: object, **_kwargs: object
) -> CheckpointPolicy:
    if operation in kept:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE
