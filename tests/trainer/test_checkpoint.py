import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.checkpoint import Checkpoints, Position
from trainer.config import Config
from trainer.errors import UserError
from trainer.events import EventLog
from trainer.mesh import Mesh
from trainer.optim import Update
from trainer.ranks import Ranks
from trainer.state import gather_tensors, restore_tensors

CPU = torch.device("cpu")
ALONE = Mesh(ranks=Ranks(), device=CPU, backend="none", num_threads=1)


def open_folder(path: Path, num_kept: int = 3) -> Checkpoints:
    """The checkpoints folder of a run, as one rank opens it."""
    events = EventLog(path=path / "events.jsonl", attempt=1, host="h")
    return Checkpoints(path / "checkpoints", ALONE, events, num_kept)


def position(step: int) -> Position:
    """A position at `step`."""
    return Position(step=step, seed=1, global_batch_size=8, num_train_samples=80, last_loss=0.5)


def save(checkpoints: Checkpoints, *steps: int, best: int = -1) -> None:
    """Save each of `steps`, its tensor full of the step."""
    for step in steps:
        tensors = {"model/w": torch.full((3,), float(step))}
        checkpoints.save(tensors, position(step), is_best=step == best)


def pointer(path: Path, name: str) -> str:
    """What the file `name` points to."""
    return (path / "checkpoints" / name).read_text().strip()


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    """Tensors and position come back; the newest one is taken."""
    save(open_folder(tmp_path), 5, 10)
    loaded = open_folder(tmp_path).load("auto")
    assert loaded is not None
    assert loaded[0]["model/w"].tolist() == [10.0] * 3
    assert loaded[1] == position(10)
    assert pointer(tmp_path, "latest") == "step-10"


def test_nothing_saved_is_a_fresh_start(tmp_path: Path) -> None:
    """Also --resume none, whatever is there."""
    assert open_folder(tmp_path).load("auto") is None
    save(open_folder(tmp_path), 5)
    assert open_folder(tmp_path).load("none") is None


def test_only_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    """And saving a step a second time only moves `best`."""
    checkpoints = open_folder(tmp_path, num_kept=2)
    save(checkpoints, 1, 2, 3, best=2)
    save(checkpoints, 4, 5)
    names = {entry.name for entry in (tmp_path / "checkpoints").iterdir()}
    assert names == {"step-2", "step-4", "step-5", "latest", "best"}
    save(checkpoints, 5, best=5)
    assert pointer(tmp_path, "best") == "step-5"
    assert (tmp_path / "events.jsonl").read_text().count('"checkpoint"') == 5


def _shorten(folder: Path) -> None:
    file = next(folder.glob("*.distcp"))
    os.truncate(file, file.stat().st_size - 1)


def _lose_state(folder: Path) -> None:
    (folder / "state.json").unlink()


def _garble(folder: Path) -> None:
    file = next(folder.glob("*.distcp"))
    file.write_bytes(b"\x00" * file.stat().st_size)


@pytest.mark.parametrize("damage", [_shorten, _lose_state, _garble])
def test_a_torn_one_is_skipped_with_a_warning_and_written_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Any
) -> None:
    """The one before it is used; reaching that step again replaces the torn one."""
    save(open_folder(tmp_path), 5, 10)
    damage(tmp_path / "checkpoints" / "step-10")
    checkpoints = open_folder(tmp_path)
    loaded = checkpoints.load("auto")
    assert loaded is not None
    assert loaded[1].step == 5
    assert "skipped checkpoint" in (told := capsys.readouterr().err)
    assert "step-10" in told
    save(checkpoints, 10)
    again = open_folder(tmp_path).load("auto")
    assert again is not None
    assert again[1].step == 10


def test_one_that_was_being_written_does_not_count(tmp_path: Path) -> None:
    """A hidden folder is what a death leaves; the next start removes it."""
    save(open_folder(tmp_path), 5)
    folder = tmp_path / "checkpoints"
    shutil.copytree(folder / "step-5", folder / ".step-9.partial")
    loaded = open_folder(tmp_path).load("auto")
    assert loaded is not None
    assert loaded[1].step == 5
    assert not list(folder.glob(".step-*"))


def test_a_path_is_taken_or_an_error(tmp_path: Path) -> None:
    """By its own name or by the folder's; it is never silently replaced by another."""
    save(open_folder(tmp_path), 5, 10)
    by_name = open_folder(tmp_path).load("step-5")
    by_path = open_folder(tmp_path).load(str(tmp_path / "checkpoints" / "step-5"))
    assert by_name is not None
    assert by_path is not None
    assert by_name[1] == by_path[1] == position(5)
    _shorten(tmp_path / "checkpoints" / "step-5")
    with pytest.raises(UserError, match="--resume step-5: a complete checkpoint"):
        open_folder(tmp_path).load("step-5")


class Attack:
    """Unpickled plainly, it would run a command."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("file", [".metadata", "tensor"])
def test_loading_runs_no_code_from_a_checkpoint(tmp_path: Path, file: str) -> None:
    """Neither from the index, which is a pickle, nor from a tensor's file."""
    save(open_folder(tmp_path), 5)
    folder = tmp_path / "checkpoints" / "step-5"
    victim = folder / ".metadata" if file == ".metadata" else next(folder.glob("*.distcp"))
    size_bytes = victim.stat().st_size
    attack = pickle.dumps(Attack(tmp_path / "ran"))
    victim.write_bytes(attack + b"\x00" * (size_bytes - len(attack)))
    assert open_folder(tmp_path).load("auto") is None
    assert not (tmp_path / "ran").exists()


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
        update.apply(0.01)


def test_a_restored_model_trains_on_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    """Weights, buffers and the optimizer's state, bit by bit, through a file."""
    model, update = trained(1, 3)
    open_folder(tmp_path).save(gather_tensors(model, update.optimizer), position(3), is_best=False)
    other, other_update = trained(2, 0)
    loaded = open_folder(tmp_path).load("auto")
    assert loaded is not None
    restore_tensors(loaded[0], other, other_update.optimizer)
    take_steps(model, update, 2)
    take_steps(other, other_update, 2)
    for (name, a), b in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_another_models_checkpoint_is_a_user_error() -> None:
    """Told with the options to look at."""
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
