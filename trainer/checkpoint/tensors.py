"""Model, optimizer and what each rank has for itself as flat, named tensors, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rundir.text import counted
from trainer.checkpoint.tensor_names import (
    GENERATORS,
    LOSS_SUM,
    MODEL,
    OPTIMIZER,
    is_loss_sum,
    of_rank,
    split_rank,
)
from trainer.data import generators
from trainer.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    Entries = Mapping[str, tuple[torch.Size, torch.dtype]]

_NOTHING: Mapping[str, torch.Size] = {}


def gather_tensors(
    model: nn.Module, optimizer: torch.optim.Optimizer, *, with_buffers: bool = True
) -> dict[str, Tensor]:
    """Return weights, buffers and the optimizer's state, by name; no copies are made.

    Buffers such as a batch norm's differ between ranks, and rank 0's are the run's, or those of the
    first rank that has these layers: the others leave them out.
    """
    state = model.state_dict()
    if not with_buffers:
        parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        state = {name: value for name, value in state.items() if name in parameters}
    tensors = {MODEL + name: tensor for name, tensor in state.items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"{OPTIMIZER}{name}/{key}"] = value
    return tensors


def gather_rank(rank: int, loss_sum: Tensor, device: torch.device) -> dict[str, Tensor]:
    """Return what is this rank's own: small copies, and the loss itself."""
    states = generators.capture(device)
    own = {of_rank(rank, GENERATORS) + name: state for name, state in states.items()}
    return {of_rank(rank, LOSS_SUM): loss_sum, **own}


def destinations(
    entries: Entries,
    model: nn.Module,
    rank: int,
    elsewhere: Mapping[str, torch.Size] = _NOTHING,
) -> dict[str, Tensor]:
    """Return tensors to read a checkpoint into, on the CPU, laid out as the model's are.

    Of what other ranks have for themselves, only the sums of losses are of use; of the model, all
    but what is `elsewhere`. Raises UserError, on all ranks, if the checkpoint has not that.
    """
    _check_elsewhere(entries, model, elsewhere)
    templates = {MODEL + name: tensor for name, tensor in model.state_dict().items()}
    parameters = dict(model.named_parameters())
    chosen = {}
    for name, (shape, dtype) in entries.items():
        is_other = split_rank(name) is not None and not name.startswith(of_rank(rank))
        if is_other and not is_loss_sum(name):
            continue
        if _owner(name) in elsewhere:
            continue
        template = templates.get(name)
        if name.startswith(OPTIMIZER):
            template = parameters.get(_owner(name))
        if template is not None and template.shape == shape:
            chosen[name] = torch.empty_like(template, dtype=dtype, device="cpu")
        else:
            chosen[name] = torch.empty(shape, dtype=dtype)
    return chosen


def _owner(name: str) -> str:
    """Return the name in the model of what an entry of a checkpoint belongs to."""
    if name.startswith(OPTIMIZER):
        return name.removeprefix(OPTIMIZER).rpartition("/")[0]
    return name.removeprefix(MODEL)


def _check_elsewhere(
    entries: Entries, model: nn.Module, elsewhere: Mapping[str, torch.Size]
) -> None:
    """Each rank checks the whole model: one that found a fault alone would end alone."""
    if not elsewhere:
        return  # `restore_tensors` will see
    wanted = {name: tensor.shape for name, tensor in model.state_dict().items()} | dict(elsewhere)
    found = {k.removeprefix(MODEL): v[0] for k, v in entries.items() if k.startswith(MODEL)}
    differing = [name for name in wanted | found if wanted.get(name) != found.get(name)]
    if differing:
        raise _other_model(f"{counted(len(differing), 'tensor')} of others, such as {differing[0]}")


def restore_tensors(
    tensors: Mapping[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Put back what `gather_tensors` returned. Raises UserError when it is of another model."""
    weights = {k.removeprefix(MODEL): v for k, v in tensors.items() if k.startswith(MODEL)}
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise _other_model(str(error)[:200]) from error
    saved = optimizer.state_dict()
    saved["state"] = _optimizer_state(tensors, model, optimizer)
    optimizer.load_state_dict(saved)


def restore_rank(
    tensors: Mapping[str, Tensor], *, rank: int, world_size: int, device: torch.device, seed: int
) -> Tensor:
    """Put this rank's generators back, and return its sum of losses, on the device.

    A rank that did not exist then is seeded with `seed`. `world_size` is the number of ranks now;
    if it has changed, rank 0 takes the sum of all, so scaled that the mean over ranks is the same.
    """
    own = of_rank(rank, GENERATORS)
    states = {k.removeprefix(own): v for k, v in tensors.items() if k.startswith(own)}
    if states:
        generators.restore(states, device)
    else:
        generators.seed_all(seed)
    sums = {name: value for name, value in tensors.items() if is_loss_sum(name)}
    if len(sums) == world_size:
        loss_sum = sums[of_rank(rank, LOSS_SUM)]
    elif rank == 0 and sums:
        loss_sum = torch.stack(list(sums.values())).sum() * (world_size / len(sums))
    else:
        loss_sum = torch.zeros(())
    return loss_sum.to(device)


def _optimizer_state(
    tensors: Mapping[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer
) -> dict[int, dict[str, Any]]:
    """Return the state in torch's own form, by the parameter's number.

    The optimizer numbers them by its groups, and has more than one where parameters are sharded.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    ordered = [id(p) for group in optimizer.param_groups for p in group["params"]]
    numbers = {name: ordered.index(id(p)) for name, p in trained.items()}
    state: dict[int, dict[str, Any]] = {}
    for full_name, tensor in tensors.items():
        if full_name.startswith(OPTIMIZER):
            name, _, key = full_name.removeprefix(OPTIMIZER).rpartition("/")
            if name not in trained:
                raise _other_model(f"optimizer state of an unknown parameter {name}")
            state.setdefault(numbers[name], {})[key] = _laid_out_as(trained[name], tensor)
    return state


def _laid_out_as(parameter: Tensor, tensor: Tensor) -> Tensor:
    """Return `tensor` with the strides of its parameter: fused optimizers walk both in step."""
    if tensor.shape != parameter.shape or tensor.stride() == parameter.stride():
        return tensor  # a count of steps, or as it should be
    return torch.empty_like(parameter, dtype=tensor.dtype, device="cpu").copy_(tensor)


def _other_model(found: str) -> UserError:
    return UserError(
        "--resume",
        rule="be a checkpoint of the same model",
        found=found,
        remedy="give the same --workload and --model, or --resume none",
    )
