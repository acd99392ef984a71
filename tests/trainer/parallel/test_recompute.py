"""What the backward computes again."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.parallel.plan import ParallelPlan, modules_named
from trainer.parallel.recompute import recompute
from trainer.workloads.llama import build_llama
from trainer.workloads.llama_presets import LLAMA_PLAN, preset

pytestmark = pytest.mark.slow  # fake tensors import the compiler


class Counting(TorchDispatchMode):
    """Counts the calls of an operation."""

    def __init__(self, operation: object) -> None:
        super().__init__()
        self.operation = operation
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Pass on."""
        self.count += func is self.operation
        return func(*args, **(kwargs or {}))


class Attention(nn.Module):
    """As cp's mask has it on a GPU where flash attention has no kernel."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, S, heads, E)."""
        result = torch.ops.aten._efficient_attention_forward(  # noqa: SLF001 -- torch's only one
            x, x, x, None, None, None, None, None, 0.0, 2, compute_log_sumexp=True
        )
        return result[0] * 2


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        small, one = x.to(torch.float8_e4m3fn), torch.ones(())
        return torch._scaled_mm(small, small.t(), one, one, out_dtype=torch.bfloat16)  # noqa: SLF001 -- as torchao

    @staticmethod
    def backward(_ctx: Any, *gradients: Any) -> Tensor:
        (gradient,) = gradients
        return gradient


class Product(nn.Module):
    """Of 8 bits, as torchao's layers have it."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (16, 16)."""
        return _Product.apply(x) * x


@pytest.mark.parametrize(("how", "count"), [("full", 2), ("selective", 1)])
@pytest.mark.parametrize(
    ("module", "operation", "shape"),
    [
        (Attention(), torch.ops.aten._efficient_attention_forward.default, (1, 8, 2, 8)),  # noqa: SLF001 -- as above
        (Product(), torch.ops.aten._scaled_mm.default, (16, 16)),  # noqa: SLF001 -- the same
    ],
)
def test_what_is_dear_is_kept(
    module: nn.Module, operation: object, shape: tuple[int, ...], how: Any, count: int
) -> None:
    """With `full` it is computed twice, with `selective` once."""
    block = type(module)()
    recompute(block, how)
    counting = Counting(operation)
    with FakeTensorMode(), counting:
        x = torch.randn(shape, dtype=torch.bfloat16, requires_grad=True)
        block(x).sum().backward()
    assert counting.count == count


class Dropping(nn.Module):
    """Draws a mask, as a block of a user's may."""

    def forward(self, x: Tensor) -> Tensor:
        """Map any shape."""
        return nn.functional.dropout(x * x, 0.5)


@pytest.mark.parametrize("how", ["full", "selective"])
def test_what_is_drawn_is_drawn_again(how: Any) -> None:
    """A plan that says nothing of random numbers gets the same masks in the backward."""
    block = Dropping()
    recompute(block, how, draws=ParallelPlan().draws)
    x = torch.ones(100, requires_grad=True)
    out = block(x)
    torch.manual_seed(7)
    out.sum().backward()
    assert torch.equal(x.grad, 2 * out)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["full", "selective"])
def test_a_llama_draws_nothing_and_keeps_no_generators_state(
    how: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading and setting them costs time at every block, most of it where a GPU has one, too."""
    model = build_llama(preset("toy"))
    for block in modules_named(model, LLAMA_PLAN.blocks):
        recompute(block, how, draws=LLAMA_PLAN.draws)
    before = torch.get_rng_state()
    monkeypatch.setattr(torch, "get_rng_state", None)
    monkeypatch.setattr(torch.random, "get_rng_state", None)
    model(torch.zeros(1, 4, dtype=torch.long)).sum().backward()
    monkeypatch.undo()
    assert torch.equal(before, torch.get_rng_state())


def _normed(how: Any, momentum: float | None, *, is_compiled: bool = False) -> nn.Module:
    torch.manual_seed(0)
    norms = nn.BatchNorm2d(4), nn.BatchNorm2d(4, momentum=momentum), nn.BatchNorm2d(4)
    norms[-1].eval()  # frozen
    convolutions = (nn.Conv2d(channels, 4, 3) for channels in (3, 4, 4))
    model = nn.Sequential(*(m for pair in zip(convolutions, norms, strict=True) for m in pair))
    if how != "none":
        recompute(model, how)
    trained = torch.compile(model) if is_compiled else model
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        trained(torch.randn(4, 3, 9, 9, generator=generator)).square().mean().backward()
    return model


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("how", ["full", "selective"])
def test_a_batch_counts_once_in_the_statistics(how: Any, *, is_compiled: bool) -> None:
    """A recomputed forward leaves the buffers, and what is measured by them, as they are."""
    momentum = 0.2 if is_compiled else None  # a mean over all batches breaks the compiler's graph
    usual = _normed("none", momentum)
    model = _normed(how, momentum, is_compiled=is_compiled)
    torch.testing.assert_close(model.state_dict(), usual.state_dict())
    x = torch.randn(4, 3, 9, 9)
    torch.testing.assert_close(model.eval()(x), usual.eval()(x))
