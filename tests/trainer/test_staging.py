"""Copies on the host that there is no memory for."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.saved import events, load, open_folder, position
from trainer import staging
from trainer.staging import HostCopies

PINNED = "CUDA error: out of memory\nCUDA kernel errors might be reported later"
PLAIN = "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."
BROKEN = "CUDA error: device-side assert triggered\nCompile with `TORCH_USE_CUDA_DSA`"


class OnGpu(Tensor):
    """A tensor that takes itself to be on a GPU."""

    @property
    def device(self) -> torch.device:
        """Where it is not."""
        return torch.device("cuda", 0)

    __torch_function__ = torch._C._disabled_torch_function_impl  # noqa: SLF001 -- as torch has it


@pytest.fixture
def allocate(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let memory on the host be refused: pinned, or any."""
    empty_like = torch.empty_like

    def refuse(error: Exception, *, only_pinned: bool) -> None:
        def allocated(like: Tensor, *, pin_memory: bool = False, **named: Any) -> Tensor:
            if pin_memory or not only_pinned:
                raise error
            return empty_like(like, **named)

        monkeypatch.setattr(staging.torch, "empty_like", allocated)

    return refuse


def test_what_cannot_be_pinned_is_copied_all_the_same(
    allocate: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into memory of the usual kind, unless it is the GPU that has failed."""
    stream = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    weights = torch.arange(3.0).as_subclass(OnGpu)
    allocate(RuntimeError(PINNED), only_pinned=True)
    assert HostCopies().take({"w": weights})["w"].tolist() == [0, 1, 2]
    allocate(RuntimeError(BROKEN), only_pinned=True)
    with pytest.raises(RuntimeError, match="assert triggered"):
        HostCopies().take({"w": weights})


@pytest.mark.parametrize("error", [RuntimeError(PINNED), RuntimeError(PLAIN), MemoryError()])
def test_without_memory_for_copies_the_training_waits(
    tmp_path: Path,
    allocate: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
    error: Exception,
) -> None:
    """The checkpoint is written from where the tensors are, and one line says why."""
    allocate(error, only_pinned=False)
    checkpoints = open_folder(tmp_path)
    checkpoints.save({"model/w": torch.ones(3)}, position(5), is_best=False)
    assert checkpoints.latest_step == 5  # without a `wait`
    assert "of step 5 is written while the training waits: no memory" in capsys.readouterr().err
    (told,) = events(tmp_path, "checkpoint")
    assert told["is_async"] is False
    assert told["stall_s"] == told["seconds"]
    loaded = load(tmp_path)
    assert loaded is not None
    assert loaded[0]["model/w"].tolist() == [1.0] * 3


def test_a_failed_gpu_ends_the_run(tmp_path: Path, allocate: Callable[..., None]) -> None:
    """Nothing that it says is true any more."""
    allocate(RuntimeError(BROKEN), only_pinned=False)
    with pytest.raises(RuntimeError, match="assert triggered"):
        open_folder(tmp_path).save({"model/w": torch.ones(3)}, position(5), is_best=False)
