"""What a forward keeps: measured, and by arithmetic."""

import contextlib
import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests import uncovered
from tests.trainer.conftest import REPOSITORY
from tests.trainer.parallel.test_layouts import SHAPE as SHAPE_OF_LAYOUTS
from trainer.loop.memory import SavedActivations, storages
from trainer.parallel.plan import ForwardPlan
from trainer.workloads.llama import build_llama
from trainer.workloads.llama_memory import activation_bytes
from trainer.workloads.llama_presets import LlamaShape, preset

LENGTH = 24
SHAPE = LlamaShape(
    vocab_size=96,
    dim=48,
    num_layers=2,
    num_heads=6,
    num_kv_heads=2,
    ffn_dim=80,
    rope_theta=1e4,
    max_sequence_length=LENGTH,
)


def kept_by(precision: str, batch: int) -> int:
    """What a Llama's forward and loss keep."""
    model = build_llama(SHAPE)
    tokens = torch.randint(SHAPE.vocab_size, (batch, LENGTH + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    kept = SavedActivations(model)
    is_half = precision == "bf16"
    with kept.measuring(), torch.autocast("cpu", torch.bfloat16, enabled=is_half):
        logits = model(inputs)
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
    return kept.peak_bytes


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_llama_keeps_what_the_formula_says(precision: str) -> None:
    """To 64 bytes, scalars of the loss."""
    plan = ForwardPlan(micro_batch_size=3, precision=precision)
    assert abs(kept_by(precision, 3) - activation_bytes(SHAPE, LENGTH, plan)) <= 64


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"recompute": "full"}, {"recompute": "selective"}),
        ({"recompute": "selective"}, {}),
        ({"tp": 2, "sequence_parallel": True}, {"tp": 2}),
        ({"tp": 2}, {}),
        ({"cp": 2}, {"cp": 2, "gathers_keys": True}),
        ({"cp": 2, "gathers_keys": True}, {}),
        ({"precision": "bf16", "gathers_half": True}, {"precision": "bf16"}),
    ],
)
def test_what_saves_memory_is_expected_to(less: dict[str, object], more: dict[str, object]) -> None:
    """By the same formula."""
    shape = preset("tinyllama-1.1b")
    reported = [
        activation_bytes(
            shape,
            2048,
            ForwardPlan(micro_batch_size=4, is_on_gpu=True, **options),  # type: ignore[arg-type]
        )
        for options in (less, more)
    ]
    assert reported[0] < reported[1]


class Doubled(torch.autograd.Function):
    """Keeps what it is given."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor) -> torch.Tensor:
        """Keep the input, and a view of it."""
        ctx.save_for_backward(x, x[:1])
        return x * 2

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor) -> torch.Tensor:
        """Read what was kept."""
        ctx.saved_tensors  # type: ignore[attr-defined] # noqa: B018 -- as real ones do
        return gradient * 2


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    """What is let go is let go at once."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_the_peak_is_of_one_microbatch() -> None:
    """What a backward has let go makes room for the next forward; views and parameters add none."""
    model = torch.nn.Linear(4, 4, bias=False)
    kept = SavedActivations(model)
    with no_collector(), kept.measuring():
        for num_rows in (10, 30, 20):
            x = torch.ones(num_rows, 4)
            Doubled.apply(model(x)).sum().backward()
    assert kept.peak_bytes == 2 * 30 * 4 * 4  # the layer's input, and its output
    assert kept._bytes == 0  # noqa: SLF001 -- nothing is held for ever


def test_measuring_changes_no_bit_and_leaves_nothing() -> None:
    """The same gradients, and no hook on any module."""
    gradients = []
    for is_measured in (False, True):
        torch.manual_seed(0)
        model = build_llama(SHAPE)
        kept = SavedActivations(model)
        tokens = torch.randint(SHAPE.vocab_size, (2, LENGTH))
        with kept.measuring() if is_measured else contextlib.nullcontext():
            model(tokens).square().mean().backward()
        gradients.append([p.grad for p in model.parameters()])
        assert not any(module._forward_pre_hooks for module in model.modules())  # noqa: SLF001
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))  # type: ignore[arg-type]


def test_a_storage_counts_once() -> None:
    """Views of one, as gradients in a bucket are."""
    bucket = torch.zeros(100)
    assert sum(storages([bucket[:40], bucket[40:], torch.zeros(5)]).values()) == 420


LARGE = {
    "vocab_size": 32_000,
    "hidden_size": 2048,
    "num_hidden_layers": 6,
    "num_attention_heads": 32,
    "intermediate_size": 5632,
}
"""TinyLlama of 1.1 billion parameters, with 6 of its 22 layers: each number is drawn."""
LARGE_BYTES = 4 * (6 * 44_044_288 + 2 * 32_000 * 2048 + 2048)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "own"),
    [
        ("--strategy fsdp", LARGE_BYTES / 64),
        # A 32nd of the first stage: 4 of 6 layers, and the embedding.
        ("--strategy fsdp --tp 4 --pp 2", 4 * (4 * 44_044_288 + 32_000 * 2048) / 32),
    ],
)
def test_a_model_starts_that_no_rank_could_hold(tmp_path: Path, options: str, own: float) -> None:
    """A rank of 64 needs its 64th of 1.6 GB, and some room to draw in: 400 MiB are enough."""
    (tmp_path / "config.json").write_text(json.dumps(SHAPE_OF_LAYOUTS | LARGE))
    program = [sys.executable, "-m", "tests.trainer.large_start", tmp_path, "64", "400"]
    ended = subprocess.run(
        [*program, *options.split(), "--global-batch-size", "64"],
        cwd=REPOSITORY,
        env=uncovered.environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    own_bytes, all_bytes = map(int, ended.stdout.split())
    assert all_bytes == LARGE_BYTES
    assert own_bytes == pytest.approx(own, rel=0.001)
