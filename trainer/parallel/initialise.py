"""First values of a model that no rank holds whole: the same ones as of the plain model.

Every rank draws every number, in the order in which the plain model does, and keeps those of its
own shards and layers. That is done in blocks of rows, so that no more than some 64 MiB are held
besides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.parallel.pipeline_split import Share

_BLOCK_NUMBERS = 1 << 24
_GROUP = 16
"""torch's generator on the CPU makes normal numbers 16 at a time, so that a tensor drawn in blocks
of a multiple of that is, to the bit, the one drawn whole."""


def materialise(
    share: Share, device: torch.device, *, cpu_offload: bool, draws: bool = True
) -> None:
    """Give a rank's share of a model memory and values.

    They are drawn from torch's global generator, unless others will be read. The whole model is on
    the meta device, and what is another rank's stays there: it is drawn, too.
    """
    for stage in share.stages:
        stage.to_empty(device="cpu" if cpu_offload else device)
        if cpu_offload:
            for module in stage.modules():
                for name, buffer in module.named_buffers(recurse=False):
                    module._buffers[name] = buffer.to(device)  # noqa: SLF001 -- as nn.Module.to has it
    share.whole.init_weights(draw_normal if draws else _leave)  # type: ignore[operator] # see Workload.build_empty


def keep_own_part(whole: Tensor, parameter: Tensor) -> None:
    """Copy into a parameter, or this rank's shard of it, its part of the `whole`."""
    local, own = _own_part(parameter)
    local.copy_(whole[own])


def _leave(parameter: Tensor, std: float) -> None:
    """Draw nothing: what is read follows."""


def draw_normal(parameter: Tensor, std: float) -> None:
    """Fill a parameter, or this rank's shard of it, from a normal distribution around 0."""
    local, (rows, *columns) = _own_part(parameter)
    shape = parameter.shape
    row_numbers = max(1, shape[1:].numel())
    step = max(_GROUP, _BLOCK_NUMBERS // row_numbers // _GROUP * _GROUP)
    begin = 0
    while begin < shape[0]:
        end = min(begin + step, shape[0])
        if (shape[0] - end) * row_numbers < _GROUP:
            end = shape[0]  # too few left for a block of their own
        block = torch.empty(end - begin, *shape[1:]).normal_(std=std)
        first, last = max(begin, rows.start), min(end, rows.stop)
        if first < last:
            part = block[first - begin : last - begin, *columns]
            local[first - rows.start : last - rows.start].copy_(part)
        begin = end


def _own_part(parameter: Tensor) -> tuple[Tensor, tuple[slice, ...]]:
    """Return this rank's shard, and where it lies in the whole."""
    if not hasattr(parameter, "placements"):
        return parameter, tuple(slice(0, size) for size in parameter.shape)
    from torch.distributed.tensor import DTensor  # noqa: PLC0415 -- it is one
    from torch.distributed.tensor._utils import (  # noqa: PLC0415 -- what torch's checkpoints use
        compute_local_shape_and_global_offset,
    )

    assert isinstance(parameter, DTensor)  # noqa: S101 -- nothing else has placements
    sizes, offsets = compute_local_shape_and_global_offset(
        parameter.shape, parameter.device_mesh, parameter.placements
    )
    places = zip(offsets, sizes, strict=True)
    return parameter.to_local(), tuple(slice(begin, begin + size) for begin, size in places)
