"""Tensor parallelism: each rank has some heads and channels of every layer.

The residual stream is the same on all ranks of tp, or, with sequence parallel, split by positions:
then what lies between the matrices, and what it keeps for the backward, is shared out, too, and
each sum over ranks becomes a sum of shares. Both send the same number of bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.distributed.tensor.parallel.style import ParallelStyle

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.placement_types import Placement

    from trainer.parallel.plan import Style

_POSITIONS = 1  # the dim of (B, S, D) that sequence parallel splits


class _ReadsStream(ParallelStyle):
    """Give a module all positions of its first input; the others are the same on all ranks."""

    def __init__(self, stream: Placement) -> None:
        super().__init__()
        self._stream = stream

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def gather(_module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            x, *rest = inputs
            if not isinstance(x, DTensor):
                x = DTensor.from_local(x, device_mesh, [self._stream], run_check=False)
            if not self._stream.is_replicate():  # else it would only take a node of the graph more
                x = x.redistribute(placements=[Replicate()])
            return (x, *rest)

        module.register_forward_pre_hook(gather)
        return module


class _Embedding(RowwiseParallel):
    """Wait for the sum over ranks, as RowwiseParallel does not.

    What a compiled block is given must not be under way: its gradient would come back to another
    place of the graph than the one it left from (torch 2.15).
    """

    @staticmethod
    def _prepare_output_fn(
        output_layouts: Sequence[Placement],
        _use_local_output: bool,  # noqa: FBT001 -- torch's own
        _module: nn.Module,
        outputs: DTensor,
        _device_mesh: DeviceMesh,
    ) -> Tensor:
        return outputs.redistribute(placements=output_layouts).to_local()


def split_matrices(
    model: nn.Module, styles: Mapping[str, Style], mesh: DeviceMesh, *, sequence_parallel: bool
) -> None:
    """Split the modules that `styles` names; those it does not name stay whole on every rank."""
    stream: Placement = Shard(_POSITIONS) if sequence_parallel else Replicate()
    made: dict[Style, ParallelStyle] = {
        "embedding": _Embedding(input_layouts=Replicate(), output_layouts=stream),
        "reads_stream": _ReadsStream(stream),
        "columns": ColwiseParallel(),
        "rows": RowwiseParallel(output_layouts=stream),
        "output": ColwiseParallel(input_layouts=stream, output_layouts=Replicate()),
    }
    if sequence_parallel:
        made["norm"] = SequenceParallel()
    tied = _tied(model)
    plan = {name: made[style] for name, style in styles.items() if style in made}
    parallelize_module(model, mesh, plan)
    for names in tied:
        first = model.get_parameter(names[0])
        for name in names[1:]:
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, first)


def _tied(model: nn.Module) -> list[list[str]]:
    """Return the names of parameters that are one, by groups: splitting would untie them."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [group for group in names.values() if len(group) > 1]
