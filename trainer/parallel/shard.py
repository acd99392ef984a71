"""Fully sharded data parallelism: a rank keeps a part of every parameter, gradient and moment.

A block's parameters are gathered before its forward, and again before its backward; its gradients
are averaged and scattered after it. Where copies are sharded (hsdp), what was scattered is averaged
over the copies, too. Copies beside tp take this way as well, with shards of one rank:
DistributedDataParallel does not know parameters that are split.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from trainer.precision import HALVES

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from trainer.config import Config
    from trainer.parallel.layout import Layout


def shard(
    model: nn.Module,
    blocks: list[nn.Module],
    layout: Layout,
    device_mesh: DeviceMesh,
    config: Config,
) -> None:
    """Shard the blocks one by one, then what is left, in place."""
    for parameter in model.parameters():
        if not parameter.is_contiguous():  # weights laid out channels-last, which it does not take
            parameter.data = parameter.data.contiguous()
    # It warns of operations in place on a model's output: nobody does one.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    is_hybrid = layout.dp_replicate > 1
    mesh = device_mesh["dp_replicate", "dp_shard"] if is_hybrid else device_mesh["dp_shard"]
    shared: dict[str, Any] = {"mesh": mesh, "offload_policy": _offload(device_mesh, config)}
    for block in blocks:
        fully_shard(
            block,
            reshard_after_forward=config.reshard_after_forward,
            # Not of what a block is given: a table of angles needs its precision.
            mp_policy=_precision(config, cast_forward_inputs=False),
            **shared,
        )
    fully_shard(model, mp_policy=_precision(config, cast_forward_inputs=True), **shared)


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
