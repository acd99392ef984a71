"""Gradients, whole or in shards: what has to be known of all of them at once.

Whether all are finite, their global norm, and scaling to it. Shards are examined where they are,
and one number goes over the ranks for each question.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import get_total_norm

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh

    Pass = Callable[[bool], AbstractContextManager[Any]]
    """Is given whether a microbatch is its step's last one; returns the context to run it in."""

_TINY = 1e-6  # as in torch's clip_grad_norm_
_NOTHING = contextlib.nullcontext()


def clip(gradients: Gradients, norm: Tensor, max_norm: float) -> None:
    """Scale gradients of a global norm `norm` to one of at most `max_norm`."""
    torch._foreach_mul_(gradients.own(), (max_norm / (norm + _TINY)).clamp(max=1.0))


def unscale_and_check(gradients: Gradients, found: Tensor, factor: Tensor) -> None:
    """Multiply by `factor`, shape (), and set `found`, shape (), to 1 if one is not finite.

    In one kernel for each device and type. Of gradients that are sharded each rank sees its own
    part: the ranks agree on `found`.
    """
    alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for gradient in gradients.own():
        alike.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    for (device, _), own in alike.items():
        is_here = device == found.device
        found_there = found if is_here else torch.zeros_like(found, device=device)
        torch._amp_foreach_non_finite_check_and_unscale_(own, found_there, factor.to(device))
        if not is_here:
            found.copy_(torch.maximum(found, found_there.to(found.device)))
    gradients.agree(found)


class Gradients:
    """The gradients of some parameters, of which every rank has all, reduced."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters

    def groups(self) -> list[list[nn.Parameter]]:
        """Return the parameters by groups that one kernel of the optimizer can take together."""
        return [[*self._parameters]]

    def own(self) -> list[Tensor]:
        """Return what this rank has of them, as plain tensors, in place."""
        return [p.grad for p in self._parameters if p.grad is not None]

    def agree(self, found: Tensor) -> None:
        """Take the maximum of `found`, shape (), over the ranks that have other shards."""

    def norm(self) -> Tensor:
        """Return the norm of all of them, on all ranks, shape (); finite only if each is."""
        return get_total_norm(self.own())


class Sharded(Gradients):
    """Some are split along some axes of a mesh; what is not a DTensor is the same on all ranks.

    With a `pipeline`, the group of the ranks that have the other layers, there are more of them.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], pipeline: dist.ProcessGroup | None = None
    ) -> None:
        super().__init__(parameters)
        num_alike = dist.get_world_size() // (1 if pipeline is None else pipeline.size())
        self._by_mesh: dict[DeviceMesh | None, list[nn.Parameter]] = {}
        self._by_copies: dict[int, list[nn.Parameter]] = {}
        """By how many ranks have the same as this one."""
        self._split: list[Any] = [p for p in parameters if hasattr(p, "placements")]
        for parameter in parameters:
            mesh: DeviceMesh | None = getattr(parameter, "device_mesh", None)
            num_copies = num_alike // _num_shards(parameter)
            self._by_mesh.setdefault(mesh, []).append(parameter)
            self._by_copies.setdefault(num_copies, []).append(parameter)

    def groups(self) -> list[list[nn.Parameter]]:
        """By mesh: no operation takes tensors of two."""
        return list(self._by_mesh.values())

    def own(self) -> list[Tensor]:
        """Return this rank's shards."""
        return [shard for _, shards in self._own_by_copies() for shard in shards]

    def agree(self, found: Tensor) -> None:
        """Ask all ranks."""
        dist.all_reduce(found, dist.ReduceOp.MAX)

    def norm(self) -> Tensor:
        """Sum up squares in one message; of what several ranks have, each gives a part."""
        squares = [
            torch.stack(torch._foreach_norm(shards)).square().sum() / num_copies  # noqa: SLF001 -- as torch's own
            for num_copies, shards in self._own_by_copies()
            if shards
        ]
        total = torch.stack(squares).sum()
        dist.all_reduce(total)
        return total.sqrt()

    def _own_by_copies(self) -> list[tuple[int, list[Tensor]]]:
        """Return this rank's shards, after making each gradient lie as its parameter does.

        A backward may leave one as parts to be summed up, over positions that ranks share out.
        """
        for parameter in self._split:
            gradient = parameter.grad  # a DTensor, as its parameter
            if gradient is not None and gradient.placements != parameter.placements:
                parameter.grad = gradient.redistribute(placements=parameter.placements)
        return [(num_copies, _own(group)) for num_copies, group in self._by_copies.items()]


def gradients_of(
    parameters: list[nn.Parameter], pipeline: dist.ProcessGroup | None = None
) -> Gradients:
    """Choose by what the parameters are, and whether other ranks have more of them."""
    is_sharded = any(hasattr(p, "placements") for p in parameters)
    if is_sharded or pipeline is not None:
        return Sharded(parameters, pipeline)
    return Gradients(parameters)


def _num_shards(parameter: nn.Parameter) -> int:
    """Return into how many parts a parameter is split, each on other ranks of its mesh."""
    mesh: Any = getattr(parameter, "device_mesh", None)
    placements = getattr(parameter, "placements", ())
    return math.prod(mesh.size(i) for i, at in enumerate(placements) if not at.is_replicate())


def _own(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Return this rank's shards of the gradients, under `torch.no_grad()` without copies."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    return [g.to_local() if hasattr(g, "to_local") else g for g in gradients]


class ShardScaler(GradScaler):
    """fp16's, for shards: agrees with all ranks on whether any of them has found an overflow.

    A part that overflows is known to its rank alone: that one would stand still and scale less,
    while the others went on. torch's own scaler gives all gradients to one kernel, which agrees
    along the axes on which the first of them is split: right for fsdp alone, by the order of the
    parameters for two meshes, and an error for tp, where some are DTensors and some are not.
    ShardedGradScaler of torch.distributed.fsdp uses the same kernel.
    """

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
    """Choose fp16's scaler by what the gradients are."""
    if is_enabled and isinstance(gradients, Sharded):
        return ShardScaler(device.type, gradients)
    return GradScaler(device.type, enabled=is_enabled)


def choose_pass(model: nn.Module, num_microbatches: int) -> Pass:
    """Keep gradients on their rank for all microbatches but the last: one reduction a step."""
    if num_microbatches > 1:
        if isinstance(model, DistributedDataParallel):
            return lambda is_last: _NOTHING if is_last else model.no_sync()
        if hasattr(model, "set_requires_gradient_sync"):
            sharded: Any = model  # FSDPModule, a class made at run time

            def keep_whole(is_last: bool) -> AbstractContextManager[Any]:  # noqa: FBT001 -- see Pass
                """Keep whole gradients, not shards, until the last microbatch."""
                sharded.set_requires_gradient_sync(is_last)
                sharded.set_is_last_backward(is_last)
                return _NOTHING

            return keep_whole
    return lambda _is_last: _NOTHING
