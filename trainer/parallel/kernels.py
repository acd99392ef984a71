"""Kernels of torch that return, with attention's output, the sums that it was divided by.

scaled_dot_product_attention calls the same ones, and keeps those sums to itself.
"""
# ruff: noqa: SLF001 -- so they are named

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.functional import pad

if TYPE_CHECKING:
    from torch import Tensor

_aten = torch.ops.aten
_NO_DROPOUT = 0.0
_SUMS_ALIGNMENT = 32  # positions; of the GPU's kernel for float32


class Attended(NamedTuple):
    """What a kernel gives; no tensor of it is another's view."""

    values: Tensor
    """(B, H, Sq, E)"""

    log_sums: Tensor
    """The logarithm of the sum of exponentials behind each: (B, H, Sq), in float32 at least."""

    seed: Tensor
    """Of dropout, which is none; the GPU's kernels ask for it in their backward."""

    offset: Tensor
    """The same."""


def attend(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool) -> Attended:
    """Attention of q, (B, H, Sq, E), to k and v, (B, H, Sk, E); causal: of as many to as many."""
    if not q.is_cuda:
        values, log_sums = _aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, is_causal=is_causal
        )
        return Attended(values, log_sums, *state_like(q))
    if q.dtype == torch.float32:  # flash attention is of 16 bits only
        values, log_sums, seed, offset = _aten._scaled_dot_product_efficient_attention(
            q, k, v, None, compute_log_sumexp=True, is_causal=is_causal
        )
        return Attended(values, log_sums[..., : q.shape[-2]], seed, offset)
    values, log_sums, _, _, _, _, seed, offset, _ = _aten._scaled_dot_product_flash_attention(
        q, k, v, is_causal=is_causal
    )
    return Attended(values, log_sums, seed, offset)


def attend_backward(
    gradient: Tensor, inputs: tuple[Tensor, ...], attended: Attended, *, is_causal: bool
) -> tuple[Tensor, ...]:
    """Return the gradients of `inputs`, which are q, k and v.

    Values and sums may be those of more keys than `k`: then it is their share of the gradient.
    """
    outputs = (attended.values, attended.log_sums)
    state = (attended.seed, attended.offset)
    if not gradient.is_cuda:
        found = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            gradient, *inputs, *outputs, _NO_DROPOUT, is_causal
        )
        return tuple(found)
    if gradient.dtype == torch.float32:
        missing = -gradient.shape[-2] % _SUMS_ALIGNMENT
        log_sums = pad(attended.log_sums, (0, missing), value=float("inf"))
        wanted = (True, True, True, False)  # a bias is not there
        *found, _ = _aten._scaled_dot_product_efficient_attention_backward(
            gradient,
            *inputs,
            None,
            attended.values,
            log_sums,
            *state,
            _NO_DROPOUT,
            wanted,
            is_causal,
        )
        return tuple(found)
    q, k, _ = inputs
    lengths = (None, None, q.shape[-2], k.shape[-2])  # no sequences packed behind one another
    found = _aten._scaled_dot_product_flash_attention_backward(
        gradient, *inputs, *outputs, *lengths, _NO_DROPOUT, is_causal, *state
    )
    return tuple(found)


def state_like(q: Tensor) -> tuple[Tensor, Tensor]:
    """Return a seed and an offset of no meaning, of the shapes and types of the GPU's kernels."""
    if q.dtype == torch.float32:
        return q.new_empty((), dtype=torch.int64), q.new_empty((), dtype=torch.int64)
    return q.new_empty(2, dtype=torch.uint64), q.new_empty((), dtype=torch.uint64)
