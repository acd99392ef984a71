"""fp16's gradient scaler, for gradients of which each rank has a part.

A part that overflows is known to its rank alone: that one would stand still and scale less, while
the others went on. torch's own scaler hands all gradients to one kernel, which agrees along the
axes on which the first of them is split: right for fsdp alone, by the order of the parameters for
two meshes, and an error for tp, where some are DTensors and some are not. ShardedGradScaler of
torch.distributed.fsdp uses the same kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.amp import GradScaler

from trainer.parallel.gradients import Sharded, unscale_and_check

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.parallel.gradients import Gradients


class ShardScaler(GradScaler):
    """Agrees with all ranks on whether any of them has found an overflow."""

    def __init__(self, device: str, gradients: Sharded) -> None:
        super().__init__(device)
        self._gradients = gradients

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:  # noqa: ANN401 -- torch's
        """Take the step unless there was an overflow anywhere."""
        if not self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]:
            self.unscale_(optimizer)  # here, as no fused kernel knows all meshes
        return super().step(optimizer, *args, **kwargs)

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,  # noqa: ARG002 -- torch's signature
        inv_scale: Tensor,
        found_inf: Tensor,
        allow_fp16: bool,  # noqa: ARG002, FBT001 -- the same
    ) -> dict[torch.device, Tensor]:
        """Divide the gradients by the scale; return whether one of them overflowed, anywhere."""
        with torch.no_grad():
            unscale_and_check(self._gradients, found_inf, inv_scale)
        return {found_inf.device: found_inf}


def scaler_of(gradients: Gradients, device: torch.device, *, is_enabled: bool) -> GradScaler:
    """Choose by what the gradients are."""
    if is_enabled and isinstance(gradients, Sharded):
        return ShardScaler(device.type, gradients)
    return GradScaler(device.type, enabled=is_enabled)
