"""Keep torch's compiler out of memory while nobody compiles.

Building an optimizer or DistributedDataParallel imports all of torch._dynamo, 1.5 to 3 s on an
ordinary core, only to learn that nothing is being compiled. Everything here is a shortcut past
that import: where torch lacks the private names it needs, it does nothing, and torch does what it
always did.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def without_compiler() -> Iterator[None]:
    """Build optimizers and DistributedDataParallel in here when nothing is to be compiled."""
    if "torch._dynamo" in sys.modules or "_dynamo" in vars(torch):
        yield
        return
    for cls in (Optimizer, DistributedDataParallel):
        _skip_disabling(cls)
    stand_in: Any = SimpleNamespace(
        utils=SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer")
    )
    torch._dynamo = stand_in  # noqa: SLF001 -- all that DistributedDataParallel asks of it
    try:
        yield
    finally:
        if vars(torch).get("_dynamo") is stand_in:
            del torch._dynamo  # noqa: SLF001 -- the real one may still be imported


def plain_step(optimizer: Optimizer) -> Callable[[], object]:
    """Return `optimizer.step` without its decorators, which import the compiler.

    They trace for the profiler and for compiled graphs, and switch gradients off: call the result
    under `torch.no_grad()`.
    """
    step = inspect.unwrap(type(optimizer).step)
    return partial(step, optimizer)


def _skip_disabling(cls: type) -> None:
    """Tell torch's `_disable_dynamo` that the methods of `cls` are already taken care of."""
    for member in vars(cls).values():
        inner = getattr(member, "__wrapped__", None)
        while inner is not None:
            if not hasattr(inner, "__dynamo_disable"):
                inner.__dynamo_disable = inner  # noqa: SLF001 -- torch's own mark
            inner = getattr(inner, "__wrapped__", None)
