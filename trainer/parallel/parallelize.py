"""Spread a model over the ranks: cut it into stages, where there is a pipeline, and apply the rest.

The axes but pp are applied to each stage as they would be to a whole model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from trainer.parallel.pipeline_split import Share, cut, whole_share
from trainer.parallel.plan import ParallelPlan, fits, modules_named
from trainer.parallel.stages import num_stages, stages_of

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from trainer.config import Config
    from trainer.parallel.layout import Layout
    from trainer.parallel.plan import ParallelPlan


def share_out(
    model: nn.Module, plan: ParallelPlan, layout: Layout, rank: int, config: Config
) -> Share:
    """Return what `rank` has of the model. Raises UserError if it cannot be cut so."""
    if layout.pp == 1:
        return whole_share(model)
    return cut(
        model,
        plan,
        pp_rank=layout.coordinates(rank)["pp"],
        pp=layout.pp,
        num_stages=num_stages(config, layout),
    )


def spread(  # noqa: PLR0913, PLR0917 -- as apply
    share: Share,
    plan: ParallelPlan,
    layout: Layout,
    device_mesh: DeviceMesh | None,
    device: torch.device,
    config: Config,
) -> nn.Module:
    """Return the share as it is to be trained, a Pipeline or a model; it is changed in place."""
    trained = [
        apply(stage, _plan_of(stage, plan), layout, device_mesh, device, config)
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
