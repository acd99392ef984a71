"""The optimizer, fused where the device can, and one update with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils import clip_grad_norm_

from trainer.lean import plain_step

if TYPE_CHECKING:
    from torch import nn

    from trainer.config import Config

_MOMENTUM = 0.9


class Update:
    """Gradient -> parameters: unscale, clip, step, clear. No device is waited for."""

    def __init__(self, model: nn.Module, config: Config, device: torch.device) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = _build_optimizer(self.parameters, config)
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "fp16")
        self._clip_grad_norm = config.clip_grad_norm
        self._step = plain_step(self.optimizer)

    def apply(self, learning_rate: float) -> None:
        """Take one step with the gradients that are there, then drop them."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        if self._clip_grad_norm is not None:
            if self.scaler.is_enabled():
                self.scaler.unscale_(self.optimizer)
            clip_grad_norm_(self.parameters, self._clip_grad_norm)
        if self.scaler.is_enabled():
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            with torch.no_grad():
                self._step()
        for parameter in self.parameters:
            parameter.grad = None


def _build_optimizer(parameters: list[nn.Parameter], config: Config) -> torch.optim.Optimizer:
    shared: dict[str, Any] = {
        "lr": config.lr,
        "weight_decay": config.weight_decay,
        "fused": all(p.is_floating_point() for p in parameters),
    }
    if config.optimizer == "sgd":
        return torch.optim.SGD(parameters, momentum=_MOMENTUM, **shared)
    if config.optimizer == "adam":
        return torch.optim.Adam(parameters, **shared)
    return torch.optim.AdamW(parameters, **shared)
