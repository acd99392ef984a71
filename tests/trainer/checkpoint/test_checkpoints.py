"""Checkpoints of one process: what is saved is loaded, what is kept, and who goes on from it."""

import errno
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist

from tests.trainer.saved import (
    ALONE,
    CPU,
    all_of,
    events,
    load,
    loaded_step,
    open_folder,
    pointer,
    save,
    shorten,
    state_at,
)
from trainer.checkpoint import saving
from trainer.checkpoint.layout import CheckpointFolder
from trainer.checkpoint.loading import read_together
from trainer.checkpoint.process_group import ProcessGroup
from trainer.checkpoint.resume import load_requested
from trainer.checkpoint.tensors import gather_tensors, restore_tensors
from trainer.config import Config
from trainer.distributed.mesh import Mesh
from trainer.environment import Ranks
from trainer.errors import UserError
from trainer.loop.optim import Update


@pytest.mark.parametrize("is_async", [True, False])
def test_what_is_saved_is_loaded(tmp_path: Path, *, is_async: bool) -> None:
    """Tensors and position come back; the newest one is taken; events report all."""
    assert save(open_folder(tmp_path, is_async=is_async), 5, 10)
    loaded = load(tmp_path)
    assert loaded is not None
    assert loaded[0]["model/w"].tolist() == [10.0] * 3
    assert loaded[1] == state_at(10)
    assert pointer(tmp_path, "latest") == "step-10"
    reported = events(tmp_path, "checkpoint")
    assert [set(t) for t in reported] == [
        {"step", "path", "seconds", "stall_s", "is_async", "bytes"}
    ] * 2
    path = tmp_path / "checkpoints" / "step-10"
    size = sum(f.stat().st_size for f in path.iterdir() if f.name != "manifest.json")
    assert (reported[1]["step"], reported[1]["path"], reported[1]["bytes"]) == (10, str(path), size)
    assert reported[1]["is_async"] is is_async
    assert (reported[1]["stall_s"] < reported[1]["seconds"]) is is_async
    assert events(tmp_path, "resume") == [{"step": 10, "path": str(path), "skipped": []}]


def test_an_asynchronous_save_keeps_what_was_when_it_was_called(tmp_path: Path) -> None:
    """The training goes on at once; what it changes does not show in the checkpoint."""
    checkpoints, weights = open_folder(tmp_path), torch.zeros(300_000)
    for step in (1, 2):
        weights.fill_(step)
        checkpoints.save({"model/w": weights}, state_at(step), is_best=False)
        weights.fill_(99)
    assert checkpoints.wait()
    for step in (1, 2):
        loaded = load(tmp_path, f"step-{step}")
        assert loaded is not None
        assert loaded[0]["model/w"].unique().tolist() == [step]


def test_an_asynchronous_save_counts_as_soon_as_it_is_complete(tmp_path: Path) -> None:
    """Who has to end asks which one counts, and how long it took, without a save after it."""
    checkpoints = open_folder(tmp_path)
    checkpoints.save({"model/w": torch.zeros(3)}, state_at(1), is_best=False)
    deadline_s = time.monotonic() + 30
    while checkpoints.last_seconds is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    assert checkpoints.latest_step == 1
    assert pointer(tmp_path, "latest") == "step-1"


def test_nothing_saved_is_a_fresh_start(tmp_path: Path) -> None:
    """Also --resume none, whatever is there."""
    assert load(tmp_path) is None
    save(open_folder(tmp_path), 5)
    assert load(tmp_path, "none") is None
    assert events(tmp_path, "resume") == [{"step": 0, "path": None, "skipped": []}] * 2


def test_only_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    """And saving a step a second time only moves `best`."""
    checkpoints = open_folder(tmp_path, num_kept=2)
    save(checkpoints, 1, 2, 3, best=2)
    save(checkpoints, 4, 5)
    names = {entry.name for entry in (tmp_path / "checkpoints").iterdir()}
    assert names == {"step-2", "step-4", "step-5", "latest", "best"}
    save(checkpoints, 5, best=5)
    assert pointer(tmp_path, "best") == "step-5"
    assert len(events(tmp_path, "checkpoint")) == 5


def test_a_resume_from_an_older_one_brings_its_best_back(tmp_path: Path) -> None:
    """`best` names no checkpoint of a branch that was left; one that is gone is not named."""
    checkpoints = open_folder(tmp_path)
    for step, best in ((5, 5), (10, 5), (15, 15)):
        state = state_at(step, best_step=best)
        checkpoints.save({"model/w": torch.full((3,), float(step))}, state, is_best=step == best)
    assert checkpoints.wait()
    assert (loaded_step(tmp_path), pointer(tmp_path, "best")) == (15, "step-15")
    assert (loaded_step(tmp_path, "step-10"), pointer(tmp_path, "best")) == (10, "step-5")
    assert loaded_step(tmp_path, "step-15") == 15
    shutil.rmtree(tmp_path / "checkpoints" / "step-5")
    assert (loaded_step(tmp_path, "step-10"), pointer(tmp_path, "best")) == (10, "step-15")


def test_a_pointer_that_cannot_be_moved_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither behind the training nor in it: the checkpoint counts; one line has the rest."""

    def refuse(folder: CheckpointFolder, pointer: str, step: int) -> None:
        if pointer == "best":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        move(folder, pointer, step)

    move = CheckpointFolder.point
    monkeypatch.setattr(CheckpointFolder, "point", refuse)
    checkpoints = open_folder(tmp_path)
    assert save(checkpoints, 5, best=5)
    checkpoints.save({"model/w": torch.zeros(3)}, state_at(5), is_best=True)
    reported = "trainer: `best` stays where it was, not at step 5: No space left on device\n"
    assert capsys.readouterr().err == 2 * reported
    assert loaded_step(tmp_path) == 5


def test_a_folder_in_the_place_of_a_pointer_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checkpoint counts, and so does the last one of a run."""
    (tmp_path / "checkpoints" / "latest").mkdir(parents=True)
    assert save(open_folder(tmp_path), 5)
    reported = "trainer: `latest` stays where it was, not at step 5: Is a directory\n"
    assert capsys.readouterr().err == reported
    assert loaded_step(tmp_path) == 5


def test_a_damaged_pointer_that_cannot_be_mended_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it should name is known all the same."""

    def refuse(_folder: CheckpointFolder, _pointer: str, _step: int) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    save(open_folder(tmp_path), 5)
    (tmp_path / "checkpoints" / "latest").write_text("noise")
    monkeypatch.setattr(CheckpointFolder, "point", refuse)
    assert loaded_step(tmp_path) == 5
    reported = "trainer: `latest` stays where it was, not at step 5: Read-only file system\n"
    assert capsys.readouterr().err == reported


def test_a_step_that_has_got_further_is_written_again(tmp_path: Path) -> None:
    """Such as one that was stopped before its validation; the newer state replaces the older."""
    checkpoints, tensors = open_folder(tmp_path), {"model/w": torch.full((3,), 4.0)}
    checkpoints.save(tensors, state_at(4), is_best=False)
    checkpoints.save(tensors, state_at(4, validated_step=4), is_best=False)
    assert checkpoints.wait()
    loaded = load(tmp_path)
    assert loaded is not None
    assert loaded[1].validated_step == 4
    assert {e.name for e in (tmp_path / "checkpoints").iterdir()} == {"step-4", "latest"}


def test_who_goes_back_goes_on_from_there(tmp_path: Path) -> None:
    """Of two branches, the one that was written last counts, not the one with more steps."""
    save(open_folder(tmp_path), 5, 10)
    checkpoints = open_folder(tmp_path)
    load_requested(checkpoints, "step-5", all_of)
    save(checkpoints, 7)
    assert loaded_step(tmp_path) == 7


def test_a_path_is_taken_or_an_error(tmp_path: Path) -> None:
    """By its own name or by the folder's; it is never silently replaced by another."""
    save(open_folder(tmp_path), 5, 10)
    assert loaded_step(tmp_path, "step-5") == 5
    assert loaded_step(tmp_path, str(tmp_path / "checkpoints" / "step-5")) == 5
    shorten(tmp_path / "checkpoints" / "step-5")
    with pytest.raises(
        UserError, match=r"--resume step-5 must be a complete checkpoint; found __0_0"
    ):
        load(tmp_path, "step-5")


def test_rank_0_says_which_checkpoint_a_name_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another node may have a folder of that name where rank 0 has none."""

    class SecondRank(Mesh):
        def max(self, values: Sequence[float]) -> list[float]:
            return [1.0 for _ in values]  # rank 0 has found one

    class TwoRanks(ProcessGroup):
        def share(self, _value: object) -> Any:
            return [tmp_path / "of rank 0"], ""

    tried: list[Path] = []

    def read(path: Path, *further: Any) -> Any:
        tried.append(path)
        return read_together(path, *further)

    monkeypatch.chdir(tmp_path)
    (tmp_path / "step-5").mkdir()
    monkeypatch.setattr(
        "trainer.checkpoint.checkpoints.ProcessGroup", lambda _mesh: TwoRanks(ALONE)
    )
    monkeypatch.setattr("trainer.checkpoint.resume.read_together", read)
    mesh = SecondRank(
        ranks=Ranks(rank=1, world_size=2, local_rank=1, local_world_size=2),
        device=CPU,
        backend="gloo",
        num_threads=1,
    )
    checkpoints = open_folder(tmp_path, mesh=mesh)
    with pytest.raises(
        UserError, match=r"found manifest\.json: No such file or directory"
    ) as reported:
        load_requested(checkpoints, "step-5", all_of)
    assert str(reported.value).startswith("--resume step-5 must be ")
    assert tried == [tmp_path / "of rank 0"]


def test_ranks_talk_about_checkpoints_in_a_group_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over gloo, whatever the training uses, and from any thread."""
    handed: list[Any] = []
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        group = ProcessGroup(replace(ALONE, backend="gloo"))
        monkeypatch.setattr(
            "torch.distributed.checkpoint.save", lambda *_, **keys: handed.append(keys)
        )
        saving._write_tensors({}, tmp_path, group)  # noqa: SLF001 -- what it hands to torch
        assert group.handle is not dist.group.WORLD
        assert dist.get_backend(group.handle) == "gloo"
    finally:
        dist.destroy_process_group()
    assert [keys["process_group"] for keys in handed] == [group.handle]
    assert handed[0]["no_dist"] is False


def test_a_relative_path_or_a_link_to_one_of_the_run_is_one_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it is named: it is what the run stands on. A copy of it elsewhere is not."""
    save(open_folder(tmp_path), 5, 10)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").symlink_to("checkpoints/step-5")
    shutil.copytree("checkpoints/step-5", "elsewhere/step-5")
    shutil.copytree("checkpoints/step-5", "checkpoints/copy")
    for request in ("checkpoints/step-5", "mine", "./checkpoints/../checkpoints/step-5/", "step-5"):
        checkpoints = open_folder(tmp_path)
        load_requested(checkpoints, request, all_of)
        assert checkpoints.latest_step == 5, request
        assert checkpoints.holds(state_at(5))
    for request in ("elsewhere/step-5", "copy"):
        checkpoints = open_folder(tmp_path)
        load_requested(checkpoints, request, all_of)
        assert checkpoints.latest_step is None, request
        assert not checkpoints.holds(state_at(5))


def trained(seed: int, steps: int, model: torch.nn.Module | None = None) -> tuple[Any, Update]:
    """A model and its update after `steps`."""
    torch.manual_seed(seed)
    model = model or torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    model = model.to(memory_format=torch.channels_last)  # strides that a file does not keep
    update = Update(model, Config(), CPU)
    take_steps(model, update, steps)
    return model, update


def take_steps(model: Any, update: Update, steps: int) -> None:
    """Train a little, on the same data each time."""
    for step in range(steps):
        torch.manual_seed(step)
        model(torch.randn(2, 3, 5, 5)).square().mean().backward()
        update.apply(0.01, torch.zeros(()))


@pytest.mark.slow
def test_a_restored_model_trains_on_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    """Weights, buffers and the optimizer's state, bit by bit, through a file."""
    model, update = trained(1, 3)
    checkpoints = open_folder(tmp_path)
    checkpoints.save(gather_tensors(model, update.optimizer), state_at(3), is_best=False)
    assert checkpoints.wait()
    other, other_update = trained(2, 0)
    loaded = load(tmp_path)
    assert loaded is not None
    restore_tensors(loaded[0], other, other_update.optimizer)
    take_steps(model, update, 2)
    take_steps(other, other_update, 2)
    for (name, a), b in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_another_models_checkpoint_is_a_user_error() -> None:
    """Reported with the options to check."""
    model, update = trained(1, 1)
    other = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3))
    with pytest.raises(UserError, match="a checkpoint of the same model"):
        restore_tensors(
            gather_tensors(model, update.optimizer), other, Update(other, Config(), CPU).optimizer
        )
    smaller = dict(gather_tensors(model, update.optimizer))
    smaller["optimizer/9.weight/exp_avg"] = torch.zeros(1)
    with pytest.raises(UserError, match=r"unknown parameter 9\.weight"):
        restore_tensors(smaller, model, update.optimizer)
