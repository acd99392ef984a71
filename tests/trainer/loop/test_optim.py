"""An update whose parameters lie on the host, while all else is on a GPU."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainer.config import Config
from trainer.loop.optim import Update

GPU = torch.device("meta")  # any that is not the CPU: it has no values, but is no place to mix


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Where gradients are checked; what is asked of a GPU's numbers is 0."""
    seen: list[torch.device] = []
    unscale = torch._amp_foreach_non_finite_check_and_unscale_

    def looked(gradients: list[Tensor], found: Tensor, scale: Tensor) -> None:
        places = {tensor.device for tensor in (*gradients, found, scale)}
        assert len(places) == 1, "one kernel for two devices"
        seen.extend(places)
        unscale(gradients, found, scale)

    monkeypatch.setattr(torch, "_amp_foreach_non_finite_check_and_unscale_", looked)
    item = Tensor.item

    def read(tensor: Tensor) -> Any:
        return 0.0 if tensor.is_meta else item(tensor)

    monkeypatch.setattr(Tensor, "item", read)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("max_norm", [None, 1.0])
@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_parameters_on_the_host_are_updated_there(
    check: list[torch.device], monkeypatch: pytest.MonkeyPatch, name: Any, max_norm: float | None
) -> None:
    """The check's result is read: a kernel of the CPU would not wait for a GPU's to arrive."""
    model = nn.Linear(3, 2)
    update = Update(model, Config(optimizer=name, clip_grad_norm=max_norm), GPU)
    monkeypatch.setattr(type(update.optimizer), "found_inf", property(), raising=False)
    before = model.weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    update.apply(0.1, torch.zeros((), device=GPU), torch.zeros((), device=GPU))
    assert not torch.equal(before, model.weight)
    assert check == ([torch.device("cpu")] if max_norm is None else [])


def test_the_scaler_of_fp16_reads_it_too() -> None:
    """It hands a fused optimizer the GPU's flag otherwise."""
    update = Update(nn.Linear(3, 2), Config(precision="fp16"), GPU)
    assert not update.optimizer._step_supports_amp_scaling  # type: ignore[attr-defined] # noqa: SLF001 -- what it asks
    update = Update(nn.Linear(3, 2), Config(precision="fp16"), torch.device("cpu"))
    assert update.optimizer._step_supports_amp_scaling  # type: ignore[attr-defined] # noqa: SLF001 -- the same


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd"])
def test_moments_are_as_asked(name: Any) -> None:
    """Two steps of each optimizer, as its formula has them, without a decay of weights."""
    beta1, beta2, eps, rate = 0.5, 0.75, 0.1, 0.01
    config = Config(optimizer=name, beta1=beta1, beta2=beta2, eps=eps, weight_decay=0)
    model = nn.Linear(1, 1, bias=False)
    update = Update(model, config, torch.device("cpu"))
    mean = square = 0.0
    weight = model.weight.item()
    for step, gradient in enumerate((2.0, -1.0), start=1):
        model.weight.grad = torch.full_like(model.weight, gradient)
        update.apply(rate, torch.zeros(()))
        if name == "sgd":
            mean = beta1 * mean + gradient
            weight -= rate * mean
            continue
        mean = beta1 * mean + (1 - beta1) * gradient
        square = beta2 * square + (1 - beta2) * gradient**2
        root = (square / (1 - beta2**step)) ** 0.5 + eps
        weight -= rate * mean / (1 - beta1**step) / root
    assert model.weight.item() == pytest.approx(weight, abs=1e-6)
