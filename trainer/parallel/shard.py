"""Fully sharded data parallelism: a rank keeps a part of every parameter, gradient and moment.

A block's parameters are gathered before its forward, and again before its backward; its gradients
are averaged and scattered after it. Where copies are sharded (hsdp), what was scattered is averaged
over the copies, too. Copies that are not sharded, beside tp or pp, take torch's `replicate`, which
is fully_shard without shards: DistributedDataParallel does not know parameters that are split.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from trainer.parallel.precision import HALVES

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from trainer.config import Config
    from trainer.parallel.layout import Layout

    _Wrap = Callable[..., Any]
    """Takes a module and its precision, and changes it in place."""


def shard(
    model: nn.Module,
    blocks: list[nn.Module],
    layout: Layout,
    device_mesh: DeviceMesh,
    config: Config,
) -> None:
    """Shard the blocks one by one, then what is left, in place; or tie their copies together."""
    for parameter in model.parameters():
        if not parameter.is_contiguous():  # weights laid out channels-last, which it does not take
            parameter.data = parameter.data.contiguous()
    # It warns of operations in place on a model's output: there is none.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    wrap, wrap_block = _wrappers(layout, device_mesh, config)
    for block in blocks:
        # Not of what a block is given: a table of angles needs its precision.
        wrap_block(block, mp_policy=_precision(config, cast_forward_inputs=False))
    wrap(model, mp_policy=_precision(config, cast_forward_inputs=True))


def _wrappers(layout: Layout, device_mesh: DeviceMesh, config: Config) -> tuple[_Wrap, _Wrap]:
    """Choose what is done to the model, and what to a block."""
    offload = _offload(device_mesh, config)
    if layout.shard_size == 1 and layout.dp_replicate > 1:
        copy = partial(replicate, mesh=device_mesh["dp_replicate"], offload_policy=offload)
        return copy, copy
    axes = ("dp_replicate", "dp_shard") if layout.dp_replicate > 1 else ("dp_shard",)
    cut = partial(fully_shard, mesh=device_mesh[axes], offload_policy=offload)
    return cut, partial(cut, reshard_after_forward=config.reshard_after_forward)


def _precision(config: Config, *, cast_forward_inputs: bool) -> MixedPrecisionPolicy:
    """Gather parameters in the type that is computed in, and sum up gradients in float32."""
    if config.precision not in HALVES:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(
        param_dtype=HALVES[config.precision],
        reduce_dtype=torch.float32,
        cast_forward_inputs=cast_forward_inputs,
    )


def _offload(device_mesh: DeviceMesh, config: Config) -> OffloadPolicy:
    if not config.cpu_offload:
        return OffloadPolicy()
    return CPUOffloadPolicy(pin_memory=device_mesh.device_type == "cuda")
