"""Gradients, whole or in shards: what has to be known of all of them at once.

Whether all are finite, their global norm, and clipping to it. Shards are looked at where they are,
and one number goes over the ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import distributed as dist
from torch.nn.utils import clip_grad_norm_

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh

_TINY = 1e-6  # as in torch's clip_grad_norm_


class Gradients(Protocol):
    """The gradients of some parameters."""

    def groups(self) -> list[list[nn.Parameter]]:
        """Return the parameters by groups that one kernel of the optimizer can take together."""

    def own(self) -> list[Tensor]:
        """Return what this rank has of them, as plain tensors, in place."""

    def agree(self, found: Tensor) -> None:
        """Take the maximum of `found`, shape (), over the ranks that have other shards."""

    def clip(self, max_norm: float) -> Tensor:
        """Scale all of them to a global norm of at most `max_norm`; return what it was."""


class Whole:
    """Every rank has all of them, reduced: they are the same everywhere."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self._parameters = parameters

    def groups(self) -> list[list[nn.Parameter]]:
        """All at once."""
        return [self._parameters]

    def own(self) -> list[Tensor]:
        """All of them."""
        return [p.grad for p in self._parameters if p.grad is not None]

    def agree(self, found: Tensor) -> None:
        """Nothing to do."""

    def clip(self, max_norm: float) -> Tensor:
        """Clip."""
        return clip_grad_norm_(self._parameters, max_norm)


class Sharded:
    """Some are split along some axes of a mesh; what is not a DTensor is the same on all ranks.

    With a `pipeline`, the group of the ranks that have the other layers, there are more of them.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], pipeline: dist.ProcessGroup | None = None
    ) -> None:
        self._pipeline = pipeline
        self._by_mesh: dict[DeviceMesh | None, list[nn.Parameter]] = {}
        self._by_split: dict[tuple[DeviceMesh | None, tuple[int, ...]], list[nn.Parameter]] = {}
        self._split: list[Any] = [p for p in parameters if hasattr(p, "placements")]
        for parameter in parameters:
            mesh, axes = _split_of(parameter)
            self._by_mesh.setdefault(mesh, []).append(parameter)
            self._by_split.setdefault((mesh, axes), []).append(parameter)

    def groups(self) -> list[list[nn.Parameter]]:
        """By mesh: no operation takes tensors of two."""
        return list(self._by_mesh.values())

    def own(self) -> list[Tensor]:
        """Return this rank's shards, after making each gradient lie as its parameter does.

        A backward may leave one as parts to be summed up, over positions that ranks share out.
        """
        for parameter in self._split:
            gradient = parameter.grad  # a DTensor, as its parameter
            if gradient is not None and gradient.placements != parameter.placements:
                parameter.grad = gradient.redistribute(placements=parameter.placements)
        return [shard for group in self._by_split.values() for shard in _own(group)]

    def agree(self, found: Tensor) -> None:
        """Ask all ranks."""
        dist.all_reduce(found, dist.ReduceOp.MAX)

    def clip(self, max_norm: float) -> Tensor:
        """Clip: squares are summed along every axis on which a group is split."""
        squares = []
        for (mesh, axes), group in self._by_split.items():
            shards = _own(group)
            if not shards:
                continue
            square = torch.stack(torch._foreach_norm(shards)).square().sum()  # noqa: SLF001 -- as torch's own
            for axis in axes:
                assert mesh is not None  # noqa: S101 -- nothing else has axes
                dist.all_reduce(square, group=mesh.get_group(axis))
            squares.append(square)
        total = torch.stack(squares).sum()
        if self._pipeline is not None:
            dist.all_reduce(total, group=self._pipeline)
        norm = total.sqrt()
        scale = (max_norm / (norm + _TINY)).clamp(max=1.0)
        for group in self._by_split.values():
            torch._foreach_mul_(_own(group), scale)
        return norm


def gradients_of(
    parameters: list[nn.Parameter], pipeline: dist.ProcessGroup | None = None
) -> Gradients:
    """Choose by what the parameters are, and whether other ranks have more of them."""
    is_sharded = any(hasattr(p, "placements") for p in parameters)
    if is_sharded or pipeline is not None:
        return Sharded(parameters, pipeline)
    return Whole(parameters)


def _split_of(parameter: nn.Parameter) -> tuple[DeviceMesh | None, tuple[int, ...]]:
    """Return a parameter's mesh, and the axes along which it is split."""
    if not hasattr(parameter, "placements"):
        return None, ()
    mesh: DeviceMesh = parameter.device_mesh  # type: ignore[attr-defined] # a DTensor
    axes = (axis for axis, placed in enumerate(parameter.placements) if not placed.is_replicate())
    return mesh, tuple(axis for axis in axes if mesh.size(axis) > 1)


def _own(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Return this rank's shards of the gradients, under `torch.no_grad()` without copies."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    return [g.to_local() if hasattr(g, "to_local") else g for g in gradients]
