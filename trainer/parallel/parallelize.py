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
from torch.nn.parallel import DistributedDataParallel

from trainer.parallel.pipeline_split import Share, split
from trainer.parallel.plan import fits, modules_named
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
        return Share(whole=model, model=model, stages=[model])
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
        from trainer.parallel.context import share_sequences  # noqa: PLC0415 -- for cp only

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


def unsharded_modules(
    share: Share, train_model: nn.Module, plan: ParallelPlan, layout: Layout, config: Config
) -> list[nn.Module]:
    """Return modules that take as long on every rank, if all are equally fast; none: not known.

    They wait for no other rank in their forward, and so show this one's speed, by hooks, which run
    after those of DistributedDataParallel's and fully_shard's that wait.
    Ranks of tp and cp communicate within a layer, so that only the matrices of which each rank
    computes its own columns are left; else those of shards and stages communicate between layers.
    """
    if layout.world_size == 1:
        return []
    if isinstance(train_model, DistributedDataParallel):
        return [train_model.module]  # its own forward sends rank 0's buffers to all
    syncs_within = layout.tp * layout.cp > 1
    if config.compile and syncs_within:
        return []  # hooks would be compiled with the layer
    columns = [name for name, style in plan.styles.items() if style == "columns"]
    patterns = columns if syncs_within else [plan.blocks]
    found = [m for stage in share.stages for p in patterns for m in modules_named(stage, p)]
    is_whole = layout.pp == 1 and not syncs_within and not config.compile
    return found or ([share.model] if is_whole else [])
