"""Make a model what its layout says, in the one order that is right.

1. tp: matrices are split while each module is still the plain one that the plan names.
2. cp: attention is replaced by one that asks the other ranks of a sequence; it takes the heads that
   tp has left to this rank.
3. Recomputation: a block's forward is replaced by one that forgets; it must contain what tp and cp
   add, or the messages of the forward would not be repeated by all ranks alike.
4. Compile: block by block, so that equal blocks are compiled once; it must see the recomputation.
   The forward of a block only, and not its hooks, which are what the next step brings.
5. fully_shard, block by block and then the rest, or DistributedDataParallel: outermost, as these
   gather parameters before a block begins, its recomputation included, and reduce gradients when
   it has ended. Inside a compiled region they would break the graph.

pp is around it: a rank does this to each of its stages, along the other axes (spread.py).

Names of parameters stay what they are through all of it, so that checkpoints do not depend on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trainer.parallel.plan import modules_named

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from trainer.config import Config
    from trainer.parallel.layout import Layout
    from trainer.parallel.plan import ParallelPlan


def apply(  # noqa: PLR0913, PLR0917 -- all that it takes, once
    model: nn.Module,
    plan: ParallelPlan,
    layout: Layout,
    device_mesh: DeviceMesh | None,
    device: torch.device,
    config: Config,
) -> nn.Module:
    """Return the model as it is to be trained; `model` itself is changed, and stays usable."""
    blocks = modules_named(model, plan.blocks)
    if layout.tp > 1:
        from trainer.parallel.tensor import split_matrices  # noqa: PLC0415 -- imports seconds

        assert device_mesh is not None  # noqa: S101 -- opened for every such layout
        split_matrices(
            model, plan.styles, device_mesh["tp"], sequence_parallel=layout.sequence_parallel
        )
    if layout.cp > 1:
        from trainer.parallel.context import share_sequences  # noqa: PLC0415 -- for those who do

        attention = modules_named(model, plan.attention)
        share_sequences(model, attention, layout, config.cp_comm_type)
    if config.activation_checkpointing != "none":
        from trainer.parallel.recompute import recompute  # noqa: PLC0415 -- the same

        for block in blocks or [model]:
            recompute(block, config.activation_checkpointing, draws=plan.draws)
    trained = _compiled(model, blocks) if config.compile else model
    if device_mesh is not None:
        if layout.dp_replicate * layout.shard_size > 1 or config.cpu_offload:
            from trainer.parallel.shard import shard  # noqa: PLC0415 -- the same

            shard(model, blocks, layout, device_mesh, config)
        return trained
    if layout.dp_replicate > 1:
        from trainer.parallel.replicate import replicate  # noqa: PLC0415 -- for several ranks

        return replicate(trained, device)
    return trained  # a wrapper would only cost time


def _compiled(model: nn.Module, blocks: list[nn.Module]) -> nn.Module:
    for block in blocks:
        block.forward = torch.compile(block.forward)
    if blocks:
        return model
    compiled: nn.Module = torch.compile(model)  # type: ignore[assignment] # a module for a module
    return compiled
