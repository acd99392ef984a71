"""Model and optimizer as flat, named tensors, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trainer.errors import UserError

if TYPE_CHECKING:
    from torch import nn

_MODEL, _OPTIMIZER = "model/", "optimizer/"


def gather_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return weights, buffers and the optimizer's state, by name; no copies are made."""
    tensors = {_MODEL + name: tensor for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"{_OPTIMIZER}{name}/{key}"] = value
    return tensors


def restore_tensors(
    tensors: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Put back what `gather_tensors` returned. Raises UserError when it is of another model."""
    weights = {k.removeprefix(_MODEL): v for k, v in tensors.items() if k.startswith(_MODEL)}
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(
            "--resume",
            rule="a checkpoint of the same model",
            found=str(error)[:200],
            remedy="give the same --workload and --model, or --resume none",
        ) from error
    saved = optimizer.state_dict()
    saved["state"] = _optimizer_state(tensors, model)
    optimizer.load_state_dict(saved)


def _optimizer_state(tensors: dict[str, Tensor], model: nn.Module) -> dict[int, dict[str, Any]]:
    """Return the state in torch's own form, by the parameter's number."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    numbers = {name: number for number, name in enumerate(trained)}
    state: dict[int, dict[str, Any]] = {}
    for full_name, tensor in tensors.items():
        if full_name.startswith(_OPTIMIZER):
            name, _, key = full_name.removeprefix(_OPTIMIZER).rpartition("/")
            if name not in trained:
                raise UserError(
                    "--resume",
                    rule="a checkpoint of the same model",
                    found=f"optimizer state of an unknown parameter {name}",
                    remedy="give the same --workload and --model, or --resume none",
                )
            state.setdefault(numbers[name], {})[key] = _laid_out_as(trained[name], tensor)
    return state


def _laid_out_as(parameter: Tensor, tensor: Tensor) -> Tensor:
    """Return `tensor` with the strides of its parameter: fused optimizers walk both in step."""
    if tensor.shape != parameter.shape:
        return tensor  # a count of steps
    return torch.empty_like(parameter, dtype=tensor.dtype, device="cpu").copy_(tensor)
