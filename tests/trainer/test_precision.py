"""Which precision a device has."""

import pytest
import torch

from trainer.errors import UserError
from trainer.precision import set_up


def test_tf32_needs_a_gpu_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Told with what was found; other precisions go anywhere."""
    for precision in ("fp32", "bf16", "fp16"):
        set_up(precision, torch.device("cpu"))
    with pytest.raises(UserError, match=r"--precision tf32: .*Ampere on; found cpu; take fp32"):
        set_up("tf32", torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "Tesla T4")
    with pytest.raises(UserError, match="found Tesla T4"):
        set_up("tf32", torch.device("cuda", 0))


def test_tf32_is_for_matrix_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """From Ampere on."""
    asked: list[str] = []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 0))
    monkeypatch.setattr(torch, "set_float32_matmul_precision", asked.append)
    set_up("fp32", torch.device("cuda", 0))
    assert not asked
    set_up("tf32", torch.device("cuda", 0))
    assert asked == ["high"]
