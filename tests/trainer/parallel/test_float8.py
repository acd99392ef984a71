"""Products of 8 bits: which layers take them, how near they are, and that layouts agree."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.trainer.loop.test_memory import SHAPE
from tests.trainer.parallel.test_layouts import SHAPE as MODEL
from tests.trainer.parallel.test_layouts import serve
from trainer import config
from trainer.__main__ import main
from trainer.errors import UserError
from trainer.loop.memory import SavedActivations
from trainer.parallel.plan import ForwardPlan, ParallelPlan
from trainer.parallel.precision import convert_to_float8
from trainer.workloads.llama import build_llama
from trainer.workloads.llama_memory import activation_bytes
from trainer.workloads.llama_presets import LLAMA_PLAN

PLAN = ParallelPlan(blocks="layers.*")


def of(model: nn.Module, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The logits, and the gradient of the first matrix."""
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(tokens)
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
    gradient = next(p for n, p in model.named_parameters() if n.endswith("wq.weight")).grad
    assert gradient is not None
    return logits.detach().float(), gradient


@pytest.mark.slow
def test_a_product_of_8_bits_is_near_but_not_the_same() -> None:
    """Rounding to 3 bits of mantissa is seen, forward and backward, and does no more."""
    torch.manual_seed(0)
    model = build_llama(SHAPE)
    tokens = torch.randint(SHAPE.vocab_size, (2, 24))
    logits, gradient = of(model, tokens)
    convert_to_float8(model, PLAN)
    rounded_logits, rounded_gradient = of(model, tokens)
    for wide, narrow in ((logits, rounded_logits), (gradient, rounded_gradient)):
        off = float((narrow - wide).norm() / wide.norm())
        assert 0.01 < off < 0.2  # bf16 alone is off by less than 0.01


@pytest.mark.slow
def test_only_layers_of_blocks_with_even_sides_are_converted() -> None:
    """The output layer, and sides that the tensor cores do not take, stay; names stay."""
    model = build_llama(replace(SHAPE, ffn_dim=72))
    names = list(model.state_dict())
    convert_to_float8(model, PLAN)
    kinds = {name: type(module).__name__ for name, module in model.named_modules()}
    converted = {name for name, kind in kinds.items() if kind == "Float8Linear"}
    assert converted == {
        f"layers.{i}.attention.{w}" for i in (0, 1) for w in ("wq", "wk", "wv", "wo")
    }
    assert list(model.state_dict()) == names


def test_a_model_without_such_layers_is_refused() -> None:
    """Silently training in bf16 would be no answer."""
    with pytest.raises(UserError, match=r"--precision fp8 must have linear layers in the w"):
        convert_to_float8(nn.Sequential(nn.Linear(10, 10)), ParallelPlan(blocks="*"))


def test_a_part_of_a_matrix_must_suit_the_tensor_cores_too() -> None:
    """Two ranks of tp have 8 channels of keys each, which a GPU's kernel would refuse in a step."""
    plan = ParallelPlan(blocks="layers.*", styles=LLAMA_PLAN.styles)
    convert_to_float8(build_llama(SHAPE), plan, tp=1)
    rule = r"multiples of 16 on each rank of tp; found 16 / 2 of layers\.0\.attention\.w[kv]; take"
    with pytest.raises(UserError, match=rule):
        convert_to_float8(build_llama(SHAPE), plan, tp=2)


def test_a_workload_without_blocks_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before torch is imported and anything is written."""
    words = ["--precision", "fp8", "--check", "--out", str(tmp_path / "out")]
    assert main(words, {}) == 64
    assert "names its blocks; found mnist, which has none; take bf16" in capsys.readouterr().err


def test_it_is_refused_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything else, with the way out."""
    monkeypatch.setattr(config, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"have torchao.*not installed.*pip install torchao"):
        config.Config(precision="fp8")


def test_what_a_forward_keeps_is_as_expected() -> None:
    """To 5 %: which copies torchao's layers keep is theirs to say."""
    model = build_llama(SHAPE)
    convert_to_float8(model, PLAN)
    kept = SavedActivations(model)
    with kept.measuring():
        of(model, torch.randint(SHAPE.vocab_size, (3, 24)))
    expected = activation_bytes(SHAPE, 24, ForwardPlan(micro_batch_size=3, precision="fp8"))
    assert kept.peak_bytes == pytest.approx(expected, rel=0.05)


@pytest.mark.slow
def test_layouts_agree(tmp_path: Path) -> None:
    """As near as products that are rounded in other places can be."""
    # A rank of tp has the keys of 16 channels at least.
    server = serve(tmp_path, MODEL | {"hidden_size": 64, "intermediate_size": 96})

    def reported(count: int, options: str) -> tuple[list[float], list[float]]:
        """Return the losses and the gradient's norms of three steps."""
        codes, run, output = server.train(count, f"--max-steps 3 {options}", options)
        assert set(codes) == {0}, output
        lines = run.metrics("loss")
        return [line["loss"] for line in lines], [line["grad_norm"] for line in lines]

    losses, norms = reported(1, "--precision fp8")
    for layout in ("--strategy fsdp", "--tp 2 --sequence-parallel"):
        narrow_losses, narrow_norms = reported(2, f"{layout} --precision fp8")
        assert narrow_losses == pytest.approx(losses, rel=5e-3)
        assert narrow_norms == pytest.approx(norms, rel=0.1)
        assert narrow_losses != pytest.approx(
            reported(2, f"{layout} --precision bf16")[0], rel=1e-5
        )
