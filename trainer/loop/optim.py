"""The optimizer, one update with it, and the learning rate, a pure function of the step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from trainer.loop.compiler import plain_step
from trainer.parallel.gradients import clip, gradients_of, scaler_of, unscale_and_check

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn
    from torch.distributed import ProcessGroup

    from trainer.config import Config


class Update:
    """Gradient -> parameters: unscale, check, clip, step, clear. No device is waited for."""

    def __init__(
        self,
        model: nn.Module,
        config: Config,
        device: torch.device,
        pipeline: ProcessGroup | None = None,
    ) -> None:
        """Take the parameters of `model`; ranks of the group `pipeline` have others of it."""
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self._gradients = gradients_of(self.parameters, pipeline)
        self.optimizer = _build_optimizer(self._gradients.groups(), config)
        self.scaler = scaler_of(self._gradients, device, is_enabled=config.precision == "fp16")
        self._clip_grad_norm = config.clip_grad_norm
        self._step = plain_step(self.optimizer)
        is_on_host = any(p.device.type == "cpu" for p in self.parameters)
        self._one = torch.ones((), device="cpu" if is_on_host else device)
        self._is_read = is_on_host or not self.optimizer.defaults["fused"]
        """Whether the check's result is read here: on a CPU there is nothing to wait for, and a
        kernel there would not wait for a result that comes from a GPU."""
        if is_on_host and device.type != "cpu":
            self.optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined] # noqa: SLF001 -- lets fp16's scaler read it, too
        self.on_gradients: Callable[[], None] | None = None
        """Called once, when the next step's gradients are there."""

    def apply(self, learning_rate: float, found: Tensor, norm: Tensor | None = None) -> None:
        """Take one step with the gradients that are there, then drop them.

        `found`, shape (), float32, becomes 1 if one of them is not finite, or, where they are to be
        clipped, if their norm is not: then nothing moves. The scaler of fp16 has its own such
        check, as its gradients overflow in the ordinary course of things, and leaves `found` alone.
        `norm`, of the same kind, becomes the gradient's global norm where that is computed, for
        clipping.
        """
        if self.on_gradients is not None:
            self.on_gradients()
            self.on_gradients = None
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        if self.scaler.is_enabled():
            if self._clip_grad_norm is not None:
                self.scaler.unscale_(self.optimizer)
                with torch.no_grad():
                    self._clip(self._gradients.norm(), norm)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            with torch.no_grad():
                self._step_if_finite(found, norm)
        for parameter in self.parameters:
            parameter.grad = None

    def _step_if_finite(self, found: Tensor, norm: Tensor | None) -> None:
        total = self._poll(found)
        if self._is_read:
            if found.item():
                return
        else:
            self.optimizer.found_inf = found  # type: ignore[attr-defined] # as GradScaler does
        self._clip(total, norm)
        self._step()

    def _poll(self, found: Tensor) -> Tensor | None:
        """Mark `found`; return the global norm where gradients are clipped, which gives both."""
        if self._clip_grad_norm is None:
            # With a factor of 1: a kernel that only looks there is none.
            unscale_and_check(self._gradients, found, self._one)
            return None
        total = self._gradients.norm()
        found.copy_(total.isfinite().logical_not_())
        return total

    def _clip(self, total: Tensor | None, norm: Tensor | None) -> None:
        if total is not None and self._clip_grad_norm is not None:
            clip(self._gradients, total, self._clip_grad_norm)
            if norm is not None:
                norm.copy_(total)


def _build_optimizer(groups: list[list[nn.Parameter]], config: Config) -> torch.optim.Optimizer:
    parameters = [parameter for group in groups for parameter in group]
    apart = [{"params": group} for group in groups]
    shared: dict[str, Any] = {
        "lr": config.lr,
        "weight_decay": config.weight_decay,
        "fused": all(p.is_floating_point() for p in parameters),
    }
    if config.optimizer == "sgd":
        if any(hasattr(p, "placements") for p in parameters):
            shared["fused"] = False  # torch has no fused form of it for shards
        optimizer = torch.optim.SGD(apart, momentum=config.beta1, **shared)
        for parameter in parameters:
            # The fused form leaves a new buffer as it finds it when the first step is not taken.
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return optimizer
    shared |= {"betas": (config.beta1, config.beta2), "eps": config.eps}
    if config.optimizer == "adam":
        return torch.optim.Adam(apart, **shared)
    return torch.optim.AdamW(apart, **shared)


@dataclass(frozen=True, kw_only=True)
class LearningRate:
    """Linear warm-up to --lr, then one of four ways down, or none.

    constant: it stays. cosine: half a cosine down to --min-lr. linear: a straight line down to it.
    wsd (warm-up, stable, decay): it stays, and goes down to it in a straight line over the last
    --decay-fraction of all steps; until then nothing depends on how many steps there will be.

    The first step after warm-up is taken at --lr, the last one of all a step above --min-lr.
    """

    config: Config
    total_steps: int

    def at(self, step: int) -> float:
        """Return the rate with which step `step`, counted from 0, is taken."""
        config = self.config
        if step < config.warmup_steps:
            return config.lr * (step + 1) / config.warmup_steps
        if config.schedule == "constant":
            return config.lr
        first = self._first_step_down()
        passed = (step - first) / max(1, self.total_steps - first)
        if config.schedule == "cosine":
            left = 0.5 * (1 + math.cos(math.pi * passed))
        else:
            left = 1 - max(0.0, passed)
        return config.min_lr + (config.lr - config.min_lr) * left

    def _first_step_down(self) -> int:
        warmup_steps, total_steps = self.config.warmup_steps, self.total_steps
        if self.config.schedule != "wsd":
            return warmup_steps
        return max(warmup_steps, total_steps - round(self.config.decay_fraction * total_steps))
