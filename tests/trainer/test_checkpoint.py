import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer import manifest
from trainer.checkpoint import Checkpoints
from trainer.config import Config
from trainer.errors import UserError
from trainer.events import EventLog
from trainer.loading import Stored
from trainer.mesh import Mesh
from trainer.optim import Update
from trainer.position import Position
from trainer.ranks import Ranks
from trainer.state import gather_tensors, restore_tensors

CPU = torch.device("cpu")
ALONE = Mesh(ranks=Ranks(), device=CPU, backend="none", num_threads=1)


def open_folder(path: Path, num_kept: int = 3, *, is_async: bool = True) -> Checkpoints:
    """The checkpoints folder of a run, as one rank opens it."""
    return Checkpoints(
        path / "checkpoints",
        ALONE,
        EventLog(path=path / "events.jsonl", attempt=1, host="h"),
        num_kept=num_kept,
        is_async=is_async,
        identity={"lr": 0.1},
    )


def position(step: int, **further: Any) -> Position:
    """A position at `step`."""
    return Position(
        step=step, seed=1, global_batch_size=8, num_train_samples=80, last_loss=0.5, **further
    )


def save(checkpoints: Checkpoints, *steps: int, best: int = -1) -> bool:
    """Save each of `steps`, its tensor full of the step; return whether the last is complete."""
    for step in steps:
        tensors = {"model/w": torch.full((3,), float(step))}
        checkpoints.save(tensors, position(step), is_best=step == best)
    return checkpoints.wait()


def all_of(stored: Stored) -> dict[str, torch.Tensor]:
    """Ask for every tensor that there is."""
    return {name: torch.empty(shape, dtype=d) for name, (shape, d) in stored.entries.items()}


def load(path: Path, wish: str = "auto") -> tuple[dict[str, torch.Tensor], Position] | None:
    """Load as a new process would."""
    return open_folder(path).load(wish, all_of)


def loaded_step(path: Path, wish: str = "auto") -> int | None:
    """The step that a new process would begin with, after a look at the values."""
    loaded = load(path, wish)
    if loaded is None:
        return None
    assert loaded[0]["model/w"].tolist() == [loaded[1].step] * 3
    return loaded[1].step


def events(path: Path, name: str) -> list[dict[str, Any]]:
    """Events of that name, without what all have."""
    lines = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    common = ("time", "event", "source", "attempt", "host")
    return [
        {k: v for k, v in line.items() if k not in common}
        for line in lines
        if line["event"] == name
    ]


def pointer(path: Path, name: str) -> str:
    """What the file `name` points to."""
    return (path / "checkpoints" / name).read_text().strip()


@pytest.mark.parametrize("is_async", [True, False])
def test_what_is_saved_is_loaded(tmp_path: Path, *, is_async: bool) -> None:
    """Tensors and position come back; the newest one is taken; events tell of all."""
    assert save(open_folder(tmp_path, is_async=is_async), 5, 10)
    loaded = load(tmp_path)
    assert loaded is not None
    assert loaded[0]["model/w"].tolist() == [10.0] * 3
    assert loaded[1] == position(10)
    assert pointer(tmp_path, "latest") == "step-10"
    told = events(tmp_path, "checkpoint")
    assert [set(t) for t in told] == [
        {"step", "path", "seconds", "stall_s", "is_async", "bytes"}
    ] * 2
    path = tmp_path / "checkpoints" / "step-10"
    size = sum(f.stat().st_size for f in path.iterdir() if f.name != "manifest.json")
    assert (told[1]["step"], told[1]["path"], told[1]["bytes"]) == (10, str(path), size)
    assert told[1]["is_async"] is is_async
    assert (told[1]["stall_s"] < told[1]["seconds"]) is is_async
    assert events(tmp_path, "resume") == [{"step": 10, "path": str(path), "skipped": []}]


def test_an_asynchronous_save_keeps_what_was_when_it_was_called(tmp_path: Path) -> None:
    """The training goes on at once; what it changes does not show in the checkpoint."""
    checkpoints, weights = open_folder(tmp_path), torch.zeros(300_000)
    for step in (1, 2):
        weights.fill_(step)
        checkpoints.save({"model/w": weights}, position(step), is_best=False)
        weights.fill_(99)
    assert checkpoints.wait()
    for step in (1, 2):
        loaded = load(tmp_path, f"step-{step}")
        assert loaded is not None
        assert loaded[0]["model/w"].unique().tolist() == [step]


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


def test_a_step_that_has_got_further_is_written_again(tmp_path: Path) -> None:
    """Such as one that was stopped before its validation; the newer state replaces the older."""
    checkpoints, tensors = open_folder(tmp_path), {"model/w": torch.full((3,), 4.0)}
    checkpoints.save(tensors, position(4), is_best=False)
    checkpoints.save(tensors, position(4, validated_step=4), is_best=False)
    assert checkpoints.wait()
    loaded = load(tmp_path)
    assert loaded is not None
    assert loaded[1].validated_step == 4
    assert {e.name for e in (tmp_path / "checkpoints").iterdir()} == {"step-4", "latest"}


def test_one_that_was_being_replaced_comes_back(tmp_path: Path) -> None:
    """A death between the two renames leaves neither a gap nor a leftover."""
    save(open_folder(tmp_path), 5)
    folder = tmp_path / "checkpoints"
    (folder / "step-5").rename(folder / ".step-5.replaced")
    assert loaded_step(tmp_path) == 5
    assert {e.name for e in folder.iterdir()} == {"step-5", "latest"}


def _tensor_file(folder: Path) -> Path:
    return next(folder.glob("*.distcp"))


def _shorten(folder: Path) -> str:
    file = _tensor_file(folder)
    os.truncate(file, file.stat().st_size - 1)
    return f"{file.name} has {file.stat().st_size} of {file.stat().st_size + 1} bytes"


def _flip(file: Path) -> str:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    return f"{file.name} has changed since it was written: its SHA-256 differs"


def _flip_tensors(folder: Path) -> str:
    return _flip(_tensor_file(folder))


def _flip_index(folder: Path) -> str:
    return _flip(folder / ".metadata")


def _flip_state(folder: Path) -> str:
    _flip(folder / "state.json")
    return "state.json"


def _lose(folder: Path) -> str:
    _tensor_file(folder).unlink()
    return "__0_0.distcp: No such file or directory"


def _lose_state(folder: Path) -> str:
    (folder / "state.json").unlink()
    return "state.json: No such file or directory"


def _lose_manifest(folder: Path) -> str:
    (folder / "manifest.json").unlink()
    return "manifest.json: No such file or directory"


def _cut_manifest(folder: Path) -> str:
    os.truncate(folder / "manifest.json", 20)
    return "manifest.json cannot be read"


def _swap(folder: Path) -> str:
    ours, others = _tensor_file(folder), _tensor_file(folder.with_name("step-5"))
    ours.rename(folder / "x")
    shutil.copy(others, ours)
    return "__0_0.distcp has changed since it was written"


def _garble(folder: Path) -> str:
    file = _tensor_file(folder)
    file.write_bytes(b"\x00" * file.stat().st_size)
    return "__0_0.distcp has changed since it was written"


DAMAGES = [
    _shorten, _flip_tensors, _flip_index, _flip_state, _lose, _lose_state, _lose_manifest,
    _cut_manifest, _swap, _garble,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_skipped_with_a_warning_and_written_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Any
) -> None:
    """The one before it is used, one line names the damage; reaching that step replaces it."""
    save(open_folder(tmp_path), 5, 10)
    bad = tmp_path / "checkpoints" / "step-10"
    problem = damage(bad)
    checkpoints = open_folder(tmp_path)
    loaded = checkpoints.load("auto", all_of)
    assert loaded is not None
    assert loaded[1].step == 5
    told = capsys.readouterr().err
    assert told.startswith(f"trainer: skipped checkpoint {bad}: ")
    assert problem in told
    assert told.count("\n") == 1
    (resume,) = events(tmp_path, "resume")
    assert resume["step"] == 5
    assert resume["skipped"][0]["path"] == str(bad)
    assert problem in resume["skipped"][0]["problem"]
    save(checkpoints, 10)
    assert loaded_step(tmp_path) == 10


def test_a_damaged_one_does_not_push_good_ones_out(tmp_path: Path) -> None:
    """With one to keep, the one written after a fallback stays, though its step is smaller."""
    save(open_folder(tmp_path), 5, 10)
    _shorten(tmp_path / "checkpoints" / "step-10")
    checkpoints = open_folder(tmp_path, num_kept=1)
    checkpoints.load("auto", all_of)
    save(checkpoints, 7)
    assert loaded_step(tmp_path) == 7
    assert {e.name for e in (tmp_path / "checkpoints").iterdir()} == {"step-7", "latest"}


def test_who_goes_back_goes_on_from_there(tmp_path: Path) -> None:
    """Of two branches, the one that was written last counts, not the one with more steps."""
    save(open_folder(tmp_path), 5, 10)
    checkpoints = open_folder(tmp_path)
    checkpoints.load("step-5", all_of)
    save(checkpoints, 7)
    assert loaded_step(tmp_path) == 7


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"step-99\n", b"../../etc", b"step-x\n"])
def test_a_damaged_pointer_does_no_harm(tmp_path: Path, content: bytes) -> None:
    """Neither to a resume nor to the best one."""
    checkpoints = open_folder(tmp_path, num_kept=1)
    for step in (1, 2, 3):
        tensors = {"model/w": torch.full((3,), float(step))}
        best = {"best_step": min(step, 2), "best_accuracy": 0.5}
        checkpoints.save(tensors, position(step, **best), is_best=step == 2)
    checkpoints.wait()
    for name in ("latest", "best"):
        (tmp_path / "checkpoints" / name).write_bytes(content)
    checkpoints = open_folder(tmp_path, num_kept=1)
    loaded = checkpoints.load("auto", all_of)
    assert loaded is not None
    assert loaded[1].step == 3
    tensors = {"model/w": torch.full((3,), 4.0)}
    checkpoints.save(tensors, position(4, best_step=2, best_accuracy=0.5), is_best=False)
    assert checkpoints.wait()
    assert pointer(tmp_path, "latest") == "step-4"
    assert loaded_step(tmp_path, "step-2") == 2


def test_one_that_was_being_written_does_not_count(tmp_path: Path) -> None:
    """A hidden folder is what a death leaves; the next start removes it."""
    save(open_folder(tmp_path), 5)
    folder = tmp_path / "checkpoints"
    shutil.copytree(folder / "step-5", folder / ".step-9.partial")
    assert loaded_step(tmp_path) == 5
    assert not list(folder.glob(".step-*"))


def test_a_path_is_taken_or_an_error(tmp_path: Path) -> None:
    """By its own name or by the folder's; it is never silently replaced by another."""
    save(open_folder(tmp_path), 5, 10)
    assert loaded_step(tmp_path, "step-5") == 5
    assert loaded_step(tmp_path, str(tmp_path / "checkpoints" / "step-5")) == 5
    _shorten(tmp_path / "checkpoints" / "step-5")
    with pytest.raises(UserError, match=r"--resume step-5: a complete checkpoint; found __0_0"):
        load(tmp_path, "step-5")


class Attack:
    """Unpickled plainly, it would run a command."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("file", [".metadata", "tensor"])
def test_loading_runs_no_code_from_a_checkpoint(tmp_path: Path, file: str) -> None:
    """Neither from the index, a pickle, nor from a tensor's file; even if the manifest fits."""
    save(open_folder(tmp_path), 5)
    folder = tmp_path / "checkpoints" / "step-5"
    victim = folder / ".metadata" if file == ".metadata" else _tensor_file(folder)
    size_bytes = victim.stat().st_size
    attack = pickle.dumps(Attack(tmp_path / "ran"))
    victim.write_bytes(attack + b"\x00" * (size_bytes - len(attack)))
    records = manifest.read(folder)
    manifest.write(folder, {**records, victim.name: manifest.seal(victim)})
    assert load(tmp_path) is None
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
        update.apply(0.01, torch.zeros(()))


def test_a_restored_model_trains_on_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    """Weights, buffers and the optimizer's state, bit by bit, through a file."""
    model, update = trained(1, 3)
    checkpoints = open_folder(tmp_path)
    checkpoints.save(gather_tensors(model, update.optimizer), position(3), is_best=False)
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
