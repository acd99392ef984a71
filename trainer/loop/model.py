"""The model of a run: built, parallelized, with its optimizer."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trainer.checkpoint.initial_weights import begin_with
from trainer.loop.compiler import without_compiler
from trainer.loop.optim import Update
from trainer.parallel.initialise import materialise
from trainer.parallel.parallelize import parallelize, share_of_rank, unsharded_modules
from trainer.parallel.precision import convert_to_float8
from trainer.workloads.checks import model_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from trainer.config import Config
    from trainer.distributed.mesh import Mesh
    from trainer.workloads.base import Workload


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """The model as it is and as it is trained, and what changes it."""

    model: nn.Module
    train_model: nn.Module
    update: Update
    stages: Sequence[nn.Module]
    """This rank's of the pipeline; without one, the model."""
    timed: Sequence[nn.Module]
    """Whose forwards wait for no other rank."""
    num_parameters: int
    """Of all ranks together, each once."""
    elsewhere: Mapping[str, torch.Size]
    """What of the model's state only other ranks have."""


def build_model(config: Config, workload: Workload, mesh: Mesh, seed: int) -> TrainedModel:
    """Build the model, with the same weights on all ranks, and its optimizer."""
    is_sharded = mesh.layout.is_sharded
    torch.manual_seed(seed)
    empty = workload.build_empty() if is_sharded else None
    whole = model_of(workload) if empty is None else empty
    num_parameters = sum(p.numel() for p in whole.parameters())
    plan = workload.parallel_plan()
    if config.precision == "fp8":
        convert_to_float8(whole, plan, mesh.layout.tp)
    share = share_of_rank(whole, plan, mesh.layout, mesh.ranks.rank, config)
    model = share.model if empty is not None else share.model.to(mesh.device)
    is_lean = not (config.compile or is_sharded or config.activation_checkpointing != "none")
    with without_compiler() if is_lean else contextlib.nullcontext():
        train_model = parallelize(share, plan, mesh.layout, mesh.device_mesh, mesh.device, config)
        if empty is not None:
            draws = config.init_from is None
            materialise(share, mesh.device, cpu_offload=config.cpu_offload, draws=draws)
        if config.init_from is not None:
            begin_with(config.init_from, model, share.elsewhere)
        update = Update(model, config, mesh.device, mesh.pp_group)
    return TrainedModel(
        model=model,
        train_model=train_model,
        update=update,
        stages=share.stages,
        timed=unsharded_modules(share, train_model, plan, mesh.layout, config),
        num_parameters=num_parameters,
        elsewhere=share.elsewhere,
    )
