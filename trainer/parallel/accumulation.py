"""Gradients of all microbatches but the last stay on their rank: one reduction a step."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from torch import nn

    Pass = Callable[[bool], AbstractContextManager[Any]]
    """Told whether a microbatch is its step's last one; returns what to take it in."""

_NOTHING = contextlib.nullcontext()


def choose_pass(model: nn.Module, num_microbatches: int) -> Pass:
    """Choose by what the model is trained as."""
    if num_microbatches > 1:
        if isinstance(model, DistributedDataParallel):
            return lambda is_last: _NOTHING if is_last else model.no_sync()
        if hasattr(model, "set_requires_gradient_sync"):
            return _Sharded(model)
    return lambda _is_last: _NOTHING


class _Sharded:
    """fully_shard: a rank keeps whole gradients, not shards, until the last microbatch."""

    def __init__(self, model: Any) -> None:  # noqa: ANN401 -- FSDPModule, a class made at run time
        self._model = model

    def __call__(self, is_last: bool) -> AbstractContextManager[Any]:  # noqa: FBT001 -- see Pass
        self._model.set_requires_gradient_sync(is_last)
        self._model.set_is_last_backward(is_last)
        return _NOTHING
