"""The optimizer, fused where the device can, and one update with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils import clip_grad_norm_

from trainer.lean import plain_step

if TYPE_CHECKING:
    from torch import Tensor, nn

    from trainer.config import Config

_MOMENTUM = 0.9


class Update:
    """Gradient -> parameters: unscale, check, clip, step, clear. No device is waited for."""

    def __init__(self, model: nn.Module, config: Config, device: torch.device) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = _build_optimizer(self.parameters, config)
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "fp16")
        self._clip_grad_norm = config.clip_grad_norm
        self._step = plain_step(self.optimizer)
        self._one = torch.ones((), device=device)
        types = {p.dtype for p in self.parameters}
        self._of_each_type = [[p for p in self.parameters if p.dtype == t] for t in types]
        is_fused = self.optimizer.defaults["fused"]
        self._is_read = device.type == "cpu" or not is_fused
        """Whether the check's result is read here: on a CPU there is nothing to wait for."""

    def apply(self, learning_rate: float, found: Tensor) -> None:
        """Take one step with the gradients that are there, then drop them.

        `found`, shape (), float32, becomes 1 if one of them is not finite: then nothing moves. The
        scaler of fp16 has its own such check, as its gradients overflow in the ordinary course of
        things, and leaves `found` alone.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        if self.scaler.is_enabled():
            if self._clip_grad_norm is not None:
                self.scaler.unscale_(self.optimizer)
                clip_grad_norm_(self.parameters, self._clip_grad_norm)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            with torch.no_grad():
                self._step_if_finite(found)
        for parameter in self.parameters:
            parameter.grad = None

    def _step_if_finite(self, found: Tensor) -> None:
        self._check(found)
        if self._is_read:
            if found.item():
                return
        else:
            self.optimizer.found_inf = found  # type: ignore[attr-defined] # as GradScaler does
        if self._clip_grad_norm is not None:
            clip_grad_norm_(self.parameters, self._clip_grad_norm)
        self._step()

    def _check(self, found: Tensor) -> None:
        """Look at every gradient, in one kernel for each type.

        Reduced gradients are the same on all ranks, and so is the answer. Of gradients that are
        sharded each rank sees its own part: their ranks take the maximum of `found` here.
        """
        for parameters in self._of_each_type:
            gradients = [p.grad for p in parameters if p.grad is not None]
            if gradients:
                # Named for what it does to scaled gradients: it multiplies them by `_one`, too.
                torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, self._one)


def _build_optimizer(parameters: list[nn.Parameter], config: Config) -> torch.optim.Optimizer:
    shared: dict[str, Any] = {
        "lr": config.lr,
        "weight_decay": config.weight_decay,
        "fused": all(p.is_floating_point() for p in parameters),
    }
    if config.optimizer == "sgd":
        optimizer = torch.optim.SGD(parameters, momentum=_MOMENTUM, **shared)
        for parameter in parameters:
            # The fused form leaves a new buffer as it finds it when the first step is not taken.
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return optimizer
    if config.optimizer == "adam":
        return torch.optim.Adam(parameters, **shared)
    return torch.optim.AdamW(parameters, **shared)
