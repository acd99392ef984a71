"""Copies on the host that there is no memory for."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.saved import events, load, open_folder, state_at
from trainer.checkpoint import host_copies as staging
from trainer.checkpoint.host_copies import HostCopies, missing_memory, num_host_bytes
from trainer.distributed import host_memory

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
    checkpoints.save({"model/w": torch.ones(3)}, state_at(5), is_best=False)
    assert checkpoints.latest_step == 5  # without a `wait`
    assert "of step 5 is written while the training waits: no memory" in capsys.readouterr().err
    (reported,) = events(tmp_path, "checkpoint")
    assert reported["is_async"] is False
    assert reported["stall_s"] == reported["seconds"]
    loaded = load(tmp_path)
    assert loaded is not None
    assert loaded[0]["model/w"].tolist() == [1.0] * 3


def test_a_failed_gpu_ends_the_run(tmp_path: Path, allocate: Callable[..., None]) -> None:
    """Nothing that it says is true any more."""
    allocate(RuntimeError(BROKEN), only_pinned=False)
    with pytest.raises(RuntimeError, match="assert triggered"):
        open_folder(tmp_path).save({"model/w": torch.ones(3)}, state_at(5), is_best=False)


def test_copies_that_do_not_fit_are_not_begun(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The system would kill the process; with room again, they are made."""
    monkeypatch.setattr(host_memory, "num_free_bytes", lambda: 1 << 29)
    checkpoints = open_folder(tmp_path)
    large = {"model/w": torch.ones(3)}
    monkeypatch.setattr("trainer.checkpoint.host_copies.num_host_bytes", lambda _tensors: 1 << 30)
    checkpoints.save(large, state_at(5), is_best=False)
    assert checkpoints.latest_step == 5  # without a `wait`
    assert capsys.readouterr().err == (
        "trainer: the checkpoint of step 5 is written while the training waits: no memory for "
        "copies on this host (1.0 GiB needed, ranks: 1; 0.5 GiB free; give the job more, as by "
        "--mem, or take --checkpoint-mode sync)\n"
    )
    monkeypatch.setattr(host_memory, "num_free_bytes", lambda: 1 << 31)
    checkpoints.save(large, state_at(6), is_best=False)
    assert checkpoints.wait()
    assert [reported["is_async"] for reported in events(tmp_path, "checkpoint")] == [False, True]


def test_the_ranks_of_a_node_share_its_memory() -> None:
    """Each node by itself; what the tightest cgroup of its ranks has left counts."""
    nodes = ("a", "a", "b", "b")
    assert missing_memory(nodes, [3, 3, 4, 4], [9, 9, 9, 9]) == ""
    assert missing_memory(nodes, [3, 3, 5, 4], [9, 9, 9, 9]).startswith("no memory for copies on b")
    assert missing_memory(nodes, [3, 3, 4, 4], [9, 6, 9, 9]).startswith("no memory for copies on a")


def test_pinned_copies_are_rounded_up() -> None:
    """As torch allocates them: to a power of two, each."""
    weights = torch.zeros(3)
    assert num_host_bytes({"w": weights}) == 12
    assert num_host_bytes({"w": weights.as_subclass(OnGpu)}) == 16
    assert num_host_bytes({"w": torch.zeros(0).as_subclass(OnGpu)}) == 0


@pytest.mark.parametrize("version", [1, 2])
def test_free_memory_is_what_the_tightest_cgroup_leaves(tmp_path: Path, version: int) -> None:
    """A job's, above the step's own; pages of unused files count as free."""
    controllers, limit, usage, stat = {
        1: ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        2: ("", "memory.max", "memory.current", "inactive_file"),
    }[version]
    step = tmp_path / "job" / "step"
    step.mkdir(parents=True)
    own = tmp_path / "cgroup"
    own.write_text(f"9:cpu:/other\n4:{controllers}:/job/step\n")
    roots = {controllers: tmp_path}
    whole = host_memory.num_free_bytes(own, roots)
    assert whole > 4000
    (step / limit).write_text("max\n")
    for name, text in {limit: "5000\n", usage: "2000\n", "memory.stat": f"{stat} 1000\n"}.items():
        (tmp_path / "job" / name).write_text(text)
    assert host_memory.num_free_bytes(own, roots) == 4000
    assert host_memory.num_free_bytes(tmp_path / "none", roots) > 4000
