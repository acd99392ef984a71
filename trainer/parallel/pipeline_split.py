"""What of a model is on this rank: all of it, or the stages of a pipeline that it has.

A stage is the model without the modules of other stages, so that parameters keep their names. It is
no copy: its modules are the model's own, so that what is done to one is done to both, and a model
on the meta device can be given its first values as a whole, in the order that one process has.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from torch import nn

from trainer.errors import UserError
from trainer.parallel.plan import fits
from trainer.parallel.stages import cut_evenly, stages_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from trainer.parallel.plan import ParallelPlan


@dataclass(frozen=True, kw_only=True)
class Share:
    """A model, and what this rank has of it."""

    whole: nn.Module
    """As it was built."""
    model: nn.Module
    """All that this rank has: trained, saved, restored. Without a pipeline, the whole."""
    stages: Sequence[nn.Module]
    """Its stages, each to be called by itself."""
    elsewhere: Mapping[str, torch.Size] = field(default_factory=dict)
    """What of the model's state other ranks have, by name."""


def split(model: nn.Module, plan: ParallelPlan, *, pp_rank: int, pp: int, num_stages: int) -> Share:
    """Return the share of the rank at `pp_rank` on the pipeline's axis.

    Raises UserError if the plan does not name the place of all parameters.
    """
    names = _names_by_stage(model, plan, num_stages)
    own = [names[number] for number in stages_of(pp_rank, pp, num_stages)]
    share = _view(model, [name for stage in own for name in stage])
    there = share.state_dict(keep_vars=True)
    return Share(
        whole=model,
        model=share,
        stages=[share] if len(own) == 1 else [_view(model, stage) for stage in own],
        elsewhere={k: v.shape for k, v in model.state_dict().items() if k not in there},
    )


def _names_by_stage(model: nn.Module, plan: ParallelPlan, num_stages: int) -> list[list[str]]:
    blocks = [name for name, _ in model.named_modules() if fits(name, plan.blocks)]
    flat = [*plan.first, *blocks, *plan.last]
    homeless = [p for p, _ in model.named_parameters() if not any(_is_in(p, n) for n in flat)]
    if homeless or not plan.last or len(blocks) < num_stages:
        raise UserError(
            "--pp",
            rule="have a plan of the workload with a stage for every parameter",
            found=f"{len(blocks)} blocks in {num_stages} stages, none for {homeless[:1]}",
            remedy="name them in its parallel_plan, or take another layout",
        )
    sizes = cut_evenly(
        [_cost(model, [name]) for name in blocks],
        _cost(model, plan.first),
        _cost(model, plan.last),
        num_stages,
    )
    rest = iter(blocks)
    names = [list(islice(rest, size)) for size in sizes]
    names[0] = [*plan.first, *names[0]]
    names[-1] = [*names[-1], *plan.last]
    return names


def _cost(model: nn.Module, names: Sequence[str]) -> float:
    """Count parameters: a token costs 2 FLOPs forward for each, but none for a looked-up row."""
    modules = [part for name in names for part in model.get_submodule(name).modules()]
    counted = [part for part in modules if not isinstance(part, nn.Embedding)]
    return float(sum(p.numel() for part in counted for p in part.parameters(recurse=False)))


def _is_in(name: str, module: str) -> bool:
    return name.startswith(module + ".")


def _view(module: nn.Module, names: Sequence[str], prefix: str = "") -> nn.Module:
    """Return the module with only those of its descendants that are named; they are shared."""
    view = copy.copy(module)
    # What belongs to this one object, such as its hooks; buffers stay shared.
    for key, value in vars(module).items():
        if isinstance(value, dict) and key != "_buffers":
            vars(view)[key] = copy.copy(value)
    view._modules.clear()  # noqa: SLF001 -- as nn.Module has them
    for name, child in module._modules.items():  # noqa: SLF001 -- the same
        full = prefix + name
        if child is not None and any(_is_in(wanted, full) for wanted in names):
            view._modules[name] = _view(child, names, full + ".")  # noqa: SLF001 -- the same
        elif full in names:
            view._modules[name] = child  # noqa: SLF001 -- the same
        elif not isinstance(module, (nn.ModuleDict, nn.ModuleList)):
            view._modules[name] = None  # noqa: SLF001 -- the same
    return view
