"""What a user's own workload returns, checked: one line where it cannot be used."""

from __future__ import annotations

from collections.abc import Sized
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rundir.text import counted
from trainer.errors import UserError
from trainer.workloads.base import TensorData

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.data import Dataset

    from trainer.workloads.base import Workload
    from trainer.workloads.tokens import TokenData

    Data = TensorData | TokenData | Dataset[Any]


def model_of(workload: Workload) -> nn.Module:
    """Return the model to train. Raises UserError for what is none."""
    model: object = workload.build_model()
    if not isinstance(model, nn.Module):
        raise _error(workload, "build_model()", "return a Module", type(model).__name__)
    for name, value in model.state_dict().items():
        if not isinstance(value, torch.Tensor):
            rule = "return a Module with a state of tensors alone"
            raise _error(workload, "build_model()", rule, f"{name}, a {type(value).__name__}")
    return model


def train_data_of(workload: Workload) -> Data:
    """Return the samples to train on. Raises UserError for what is none."""
    data = workload.train_data()
    _check_data(workload, "train_data()", data)
    return data


def test_data_of(workload: Workload) -> Data | None:
    """Return the samples that are held out, None if there are none. Raises UserError, too."""
    data = workload.test_data()
    if data is None:
        return None
    _check_data(workload, "test_data()", data)
    return data if len(data) else None  # type: ignore[arg-type] # it has a length


def loss_of(workload: Workload, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of a microbatch, shape (). Raises UserError for what is none.

    torch would report it of a tensor of ours, with a traceback in which no line is the workload's.
    """
    loss = workload.loss(outputs, targets)
    if not isinstance(loss, torch.Tensor):
        raise _error(workload, "loss()", "return a scalar tensor", type(loss).__name__)
    if loss.dim():
        found = f"one of shape {tuple(loss.shape)}"
        raise _error(workload, "loss()", "return a scalar tensor", found)
    if torch.is_grad_enabled() and not loss.requires_grad:
        rule = "be computed from the outputs of a model with parameters to train"
        raise _error(workload, "loss()", rule, "one that no gradient flows through")
    return loss


def _check_data(workload: Workload, method: str, data: object) -> None:
    if not isinstance(data, Sized):
        rule = "be a TensorData or a map-style Dataset, which has a length"
        raise _error(workload, method, rule, f"{type(data).__name__} without one")
    if not isinstance(data, TensorData):
        return
    kinds = [type(one).__name__ for one in (data.inputs, data.targets) if not torch.is_tensor(one)]
    if kinds:
        raise _error(workload, method, "have tensors in a TensorData", ", ".join(kinds))
    if len(data.inputs) != len(data.targets):
        found = f"{counted(len(data.inputs), 'input')} and {counted(len(data.targets), 'target')}"
        raise _error(workload, method, "have as many inputs as targets", found)


def _error(workload: Workload, method: str, rule: str, found: str) -> UserError:
    return UserError(
        f"{method} of the workload {type(workload).__name__}",
        rule=rule,
        found=found,
        remedy="correct the class (docs/trainer.md has an example)",
    )
