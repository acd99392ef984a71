"""A damaged checkpoint: skipped and reported, and never more than that."""

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.saved import (
    all_of,
    events,
    load,
    loaded_step,
    open_folder,
    pointer,
    save,
    shorten,
    state_at,
    tensor_file,
)
from trainer.checkpoint import manifest
from trainer.checkpoint.layout import CheckpointFolder
from trainer.checkpoint.resume import load_previous, load_requested
from trainer.errors import UserError


def _flip(file: Path) -> str:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    return f"{file.name} has changed since it was written: its SHA-256 differs"


def _flip_tensors(folder: Path) -> str:
    return _flip(tensor_file(folder))


def _flip_index(folder: Path) -> str:
    return _flip(folder / ".metadata")


def _flip_state(folder: Path) -> str:
    _flip(folder / "state.json")
    return "state.json"


def _cut_state(folder: Path) -> str:
    os.truncate(folder / "state.json", 20)
    return "state.json has 20 of"


def _lose(folder: Path) -> str:
    tensor_file(folder).unlink()
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


def _nest_manifest(folder: Path) -> str:
    (folder / "manifest.json").write_text("[" * 100_000)
    return "manifest.json cannot be read"


def _nest_state(folder: Path) -> str:
    (folder / "state.json").write_text("[" * 100_000)
    return "state.json has 100000 of"


def _swap(folder: Path) -> str:
    ours, others = tensor_file(folder), tensor_file(folder.with_name("step-5"))
    ours.rename(folder / "x")
    shutil.copy(others, ours)
    return "__0_0.distcp has changed since it was written"


def _garble(folder: Path) -> str:
    file = tensor_file(folder)
    file.write_bytes(b"\x00" * file.stat().st_size)
    return "__0_0.distcp has changed since it was written"


def _as_pipe(path: Path) -> str:
    path.unlink()
    os.mkfifo(path)
    return f"{path.name} is no file"


def _state_as_pipe(folder: Path) -> str:
    return _as_pipe(folder / "state.json")


def _index_as_pipe(folder: Path) -> str:
    return _as_pipe(folder / ".metadata")


def _manifest_as_pipe(folder: Path) -> str:
    return _as_pipe(folder / "manifest.json")


def _link_to_nothing(folder: Path) -> str:
    shutil.rmtree(folder)
    folder.symlink_to("nowhere")
    return "manifest.json: No such file or directory"


DAMAGES = [
    _link_to_nothing,
    _state_as_pipe,
    _index_as_pipe,
    _manifest_as_pipe,
    shorten, _flip_tensors, _flip_index, _flip_state, _cut_state, _lose, _lose_state,
    _lose_manifest, _cut_manifest, _nest_manifest, _nest_state, _swap, _garble,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_skipped_with_a_warning_and_written_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Any
) -> None:
    """The one before it is used, one line names the damage; reaching that step replaces it."""
    save(open_folder(tmp_path), 5, 10)
    bad = tmp_path / "checkpoints" / "step-10"
    problem = damage(bad)
    checkpoints = open_folder(tmp_path)
    loaded = load_requested(checkpoints, "auto", all_of)
    assert loaded is not None
    assert loaded[1].step == 5
    output = capsys.readouterr().err
    assert output.startswith(f"trainer: skipped checkpoint {bad}: ")
    assert problem in output
    assert output.count("\n") == 1
    (resume,) = events(tmp_path, "resume")
    assert resume["step"] == 5
    assert resume["skipped"][0]["path"] == str(bad)
    assert problem in resume["skipped"][0]["problem"]
    save(checkpoints, 10)
    assert loaded_step(tmp_path) == 10


def test_nothing_is_begun_over_damaged_ones(tmp_path: Path) -> None:
    """Where none is whole the run ends in one line, and `--resume none` begins anew on purpose."""
    save(open_folder(tmp_path), 5, 10)
    _, problem = (shorten(tmp_path / "checkpoints" / f"step-{step}") for step in (5, 10))
    newest = f"whole; found all 2 damaged, the newest, step-10: {problem}"
    with pytest.raises(UserError, match=newest + r"; .* --resume none$"):
        load(tmp_path)
    assert events(tmp_path, "resume") == []
    assert load(tmp_path, "none") is None


def _newer_manifest(folder: Path) -> str:
    file = folder / "manifest.json"
    file.write_text(file.read_text().replace('"version": 1', '"version": 2'))
    return "manifest.json is of version 2, newer than 1"


def _sealed(file: Path) -> None:
    records = manifest.read(file.parent)
    manifest.write(file.parent, {**records, file.name: manifest.seal(file)})


def _newer_state(folder: Path) -> str:
    file = folder / "state.json"
    file.write_text(file.read_text().replace('"serial"', '"new": 1, "serial"'))
    _sealed(file)
    return "unexpected keyword argument 'new'"


def _newer_index(folder: Path) -> str:
    file = folder / ".metadata"
    file.write_bytes(file.read_bytes().replace(b"_StorageInfo", b"_StorageInf2"))
    _sealed(file)
    return "torch.distributed.checkpoint.filesystem._StorageInf2"


@pytest.mark.parametrize("change", [_newer_manifest, _newer_state, _newer_index])
def test_what_this_version_does_not_know_is_no_damage(tmp_path: Path, change: Any) -> None:
    """It is not passed over for an older one either: the run ends in one line."""
    save(open_folder(tmp_path), 5, 10)
    problem = change(tmp_path / "checkpoints" / "step-10")
    with pytest.raises(UserError) as caught:
        load(tmp_path)
    output = str(caught.value)
    newest = tmp_path / "checkpoints" / "step-10"
    assert f"checkpoint {newest} must be one that this version" in output
    assert problem in output
    assert "\n" not in output
    assert events(tmp_path, "resume") == []
    assert loaded_step(tmp_path, "step-5") == 5


def test_a_damaged_one_does_not_push_good_ones_out(tmp_path: Path) -> None:
    """With one to keep, the one written after a fallback stays, though its step is smaller."""
    save(open_folder(tmp_path), 5, 10)
    shorten(tmp_path / "checkpoints" / "step-10")
    checkpoints = open_folder(tmp_path, num_kept=1)
    load_requested(checkpoints, "auto", all_of)
    save(checkpoints, 7)
    assert loaded_step(tmp_path) == 7
    assert {e.name for e in (tmp_path / "checkpoints").iterdir()} == {"step-7", "latest"}


def test_one_that_was_written_anew_is_damaged_no_more(tmp_path: Path) -> None:
    """It is the newest good one then, and stays like any other."""
    save(open_folder(tmp_path), 5, 10)
    shorten(tmp_path / "checkpoints" / "step-10")
    checkpoints = open_folder(tmp_path, num_kept=2)
    load_requested(checkpoints, "auto", all_of)
    save(checkpoints, 10, 15)
    names = {entry.name for entry in (tmp_path / "checkpoints").iterdir()}
    assert names == {"step-10", "step-15", "latest"}


@pytest.mark.parametrize("damage", [_cut_state, _lose_state])
def test_one_whose_place_is_unknown_pushes_no_good_one_out(tmp_path: Path, damage: Any) -> None:
    """It was not read, as a path was named: it neither counts as the newest nor is lost."""
    save(open_folder(tmp_path), 5, 10, 20)
    damage(tmp_path / "checkpoints" / "step-5")
    checkpoints = open_folder(tmp_path, num_kept=1)
    load_requested(checkpoints, "step-20", all_of)
    save(checkpoints, 25)
    names = {entry.name for entry in (tmp_path / "checkpoints").iterdir()}
    assert names == {"step-5", "step-25", "latest"}
    assert pointer(tmp_path, "latest") == "step-25"
    assert loaded_step(tmp_path) == 25


def test_who_goes_back_finds_the_one_before_a_damaged_one_on_its_own_branch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a newer branch nor a later step, as long as one of its own can be loaded."""
    save(open_folder(tmp_path, num_kept=9), 5, 10, 15, 30)
    checkpoints = open_folder(tmp_path, num_kept=9)
    assert checkpoints.back_step is None
    load_requested(checkpoints, "step-15", all_of)
    save(checkpoints, 20, 25)
    assert checkpoints.back_step == 25
    for bad, step in ((25, 20), (20, 15), (15, 10)):
        shorten(tmp_path / "checkpoints" / f"step-{bad}")
        loaded = load_previous(checkpoints, all_of)
        assert loaded is not None
        assert loaded[1].step == checkpoints.back_step == checkpoints.latest_step == step
        assert f"skipped checkpoint {tmp_path / 'checkpoints' / f'step-{bad}'}: " in (
            capsys.readouterr().err
        )
    for bad in (5, 10):
        shorten(tmp_path / "checkpoints" / f"step-{bad}")
    assert load_previous(checkpoints, all_of) is None


def test_a_damaged_one_elsewhere_says_nothing_of_one_of_that_name_here(tmp_path: Path) -> None:
    """What the run began from lies in another folder, and has been damaged since."""
    save(open_folder(tmp_path / "other"), 5)
    other = tmp_path / "other" / "checkpoints" / "step-5"
    save(open_folder(tmp_path), 3, 4, 5)
    checkpoints = open_folder(tmp_path, num_kept=2)
    load_requested(checkpoints, str(other), all_of)
    shorten(other)
    assert load_previous(checkpoints, all_of) is None
    save(checkpoints, 6)
    assert CheckpointFolder(tmp_path / "checkpoints").names() == ["step-6", "step-5"]


def test_what_latest_names_is_never_removed(tmp_path: Path) -> None:
    """Whatever the order is taken to be: a pointer must not dangle."""
    save(open_folder(tmp_path), 5, 10)
    folder = CheckpointFolder(tmp_path / "checkpoints")
    folder.point("latest", 5)
    folder.prune(1, kept=(), damaged=["step-5"])
    assert folder.names() == ["step-10", "step-5"]
    assert folder.pointed("latest") == "step-5"


def test_a_pointer_is_written_through_no_link(tmp_path: Path) -> None:
    """Where others may write, it may lead to a file of this user's."""
    (tmp_path / "mine").write_text("kept")
    (tmp_path / ".latest.partial").symlink_to("mine")
    with pytest.raises(OSError, match="symbolic link"):
        CheckpointFolder(tmp_path).point("latest", 5)
    assert (tmp_path / "mine").read_text() == "kept"


@pytest.mark.timeout(60)
def test_a_pointer_that_is_a_pipe_blocks_no_reader(tmp_path: Path) -> None:
    """It is read as none at all, and written anew."""
    save(open_folder(tmp_path), 5)
    _as_pipe(tmp_path / "checkpoints" / "latest")
    loaded = load_requested(open_folder(tmp_path), "auto", all_of)
    assert loaded is not None
    assert pointer(tmp_path, "latest") == "step-5"


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"step-99\n", b"../../etc", b"step-x\n"])
def test_a_damaged_pointer_does_no_harm(tmp_path: Path, content: bytes) -> None:
    """Neither to a resume nor to the best one."""
    checkpoints = open_folder(tmp_path, num_kept=1)
    for step in (1, 2, 3):
        tensors = {"model/w": torch.full((3,), float(step))}
        best = {"best_step": min(step, 2), "best_accuracy": 0.5}
        checkpoints.save(tensors, state_at(step, **best), is_best=step == 2)
    checkpoints.wait()
    for name in ("latest", "best"):
        (tmp_path / "checkpoints" / name).write_bytes(content)
    checkpoints = open_folder(tmp_path, num_kept=1)
    loaded = load_requested(checkpoints, "auto", all_of)
    assert loaded is not None
    assert loaded[1].step == 3
    tensors = {"model/w": torch.full((3,), 4.0)}
    checkpoints.save(tensors, state_at(4, best_step=2, best_accuracy=0.5), is_best=False)
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
    victim = folder / ".metadata" if file == ".metadata" else tensor_file(folder)
    size_bytes = victim.stat().st_size
    attack = pickle.dumps(Attack(tmp_path / "ran"))
    victim.write_bytes(attack + b"\x00" * (size_bytes - len(attack)))
    records = manifest.read(folder)
    manifest.write(folder, {**records, victim.name: manifest.seal(victim)})
    with pytest.raises(UserError, match="one that this version, with its torch, can read"):
        load(tmp_path)
    assert not (tmp_path / "ran").exists()
