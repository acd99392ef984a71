"""Parallelize a model: split it into stages, where there is a pipeline, and apply the other axes.

To each stage as to a whole model, in the one order that is right:

1. tp: matrices are split while each module is still the plain one that the plan names.
2. cp: attention is replaced by one that asks the other ranks of a sequence; it takes the heads that
   tp has left to this rank.
3. Recomputation: a block's forward is replaced by one that forgets; it must contain what tp and cp
   add, or the messages of the forward would not be repeated by all ranks alike.
4. Compile: block by block, so that equal blocks are compiled once; it must see the recomputation.
   The forward of a block only, and not its hooks, which are what the next step adds.
5. fully_shard, block by block and then the rest, or DistributedDataParallel: outermost, as these
   gather parameters before a block begins, its recomputation included, and reduce gradients when
   it has ended. Inside a compiled region they would break the graph.

Names of parameters stay what they are through all of it, so that checkpoints do not depend on it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from trainer.parallel.pipeline_split import Share, split, whole_share
from trainer.parallel.plan import ParallelPlan, fits, modules_named
from trainer.parallel.stages import num_stages, stages_of

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from trainer.config import Config
    from trainer.parallel.layout import Layout
    from trainer.parallel.plan import ParallelPlan


def share_of_rank(
    model: nn.Module, plan: ParallelPlan, layout: Layout, rank: int, config: Config
) -> Share:
    """Return what `rank` has of the model. Raises UserError if it cannot be split so."""
    if layout.pp == 1:
        return whole_share(model)
    return split(
        model,
        plan,
        pp_rank=layout.coordinates(rank)["pp"],
        pp=layout.pp,
        num_stages=num_stages(config, layout),
    )


def parallelize(  # noqa: PLR0913, PLR0917 -- as apply_axes
    share: Share,
    plan: ParallelPlan,
    layout: Layout,
    device_mesh: DeviceMesh | None,
    device: torch.device,
    config: Config,
) -> nn.Module:
    """Return the share as it is to be trained, a Pipeline or a model; it is changed in place."""
    trained = [
        apply_axes(stage, _plan_of(stage, plan), layout, device_mesh, device, config)
        for stage in share.stages
    ]
    if layout.pp == 1:
        return trained[0]
    from trainer.parallel.pipeline import Pipeline  # noqa: PLC0415 -- imports seconds

    assert device_mesh is not None  # noqa: S101 -- opened for every such layout
    count = num_stages(config, layout)
    return Pipeline(
        trained,
        stages_of(device_mesh.get_local_rank("pp"), layout.pp, count),
        count,
        config.pp_schedule,
        device_mesh.get_group("pp"),
        device,
    )


def _plan_of(stage: nn.Module, plan: ParallelPlan) -> ParallelPlan:
    """Return the plan without the styles of what is not there: torch would warn of them."""
    names = [name for name, _ in stage.named_modules()]
    there = {p: style for p, style in plan.styles.items() if any(fits(n, p) for n in names)}
    return replace(plan, styles=there)


def apply_axes(  # noqa: PLR0913, PLR0917 -- all that it takes, once
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
