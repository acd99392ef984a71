"""Which precision a device has."""

from collections.abc import Iterator

import pytest
import torch

from trainer.distributed.device import be_deterministic
from trainer.errors import UserError
from trainer.parallel.precision import set_up


def test_tf32_needs_a_gpu_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Told with what was found; other precisions go anywhere."""
    for precision in ("fp32", "bf16", "fp16"):
        set_up(precision, torch.device("cpu"))
    with pytest.raises(
        UserError, match=r"--precision tf32 must have .*Ampere on; found cpu; take fp32"
    ):
        set_up("tf32", torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "Tesla T4")
    with pytest.raises(UserError, match="found Tesla T4"):
        set_up("tf32", torch.device("cuda", 0))


@pytest.fixture(autouse=True)
def convolutions() -> Iterator[None]:
    """What a test says of them ends with it."""
    yield
    torch.backends.cudnn.allow_tf32 = True


def test_fp32_is_no_tf32_for_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which torch takes by default; a request for it is always answered."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 0))
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda _precision: None)
    for precision in ("tf32", "bf16"):
        set_up(precision, torch.device("cuda", 0))
        assert torch.backends.cudnn.conv.fp32_precision == "tf32"
    set_up("fp32", torch.device("cuda", 0))
    assert torch.backends.cudnn.conv.fp32_precision != "tf32"
    assert torch.backends.cudnn.rnn.fp32_precision != "tf32"
    with torch.backends.cudnn.flags(enabled=True):  # asks by the older way
        pass


def test_deterministic_is_passed_to_the_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """To those of NVIDIA by their variables, unless the user has set something else."""
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda **_named: None)
    env = {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}
    be_deterministic(env)
    assert env == {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "NCCL_ALGO": "^NVLS,NVLSTree"}


def test_tf32_is_for_matrix_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """From Ampere on."""
    asked: list[str] = []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 0))
    monkeypatch.setattr(torch, "set_float32_matmul_precision", asked.append)
    set_up("fp32", torch.device("cuda", 0))
    assert not asked
    set_up("tf32", torch.device("cuda", 0))
    assert asked == ["high"]
