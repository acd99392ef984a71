"""The folder `checkpoints/`: what is left of steps that were replaced or removed."""

import errno
import os
import shutil
from pathlib import Path

import pytest
import torch

from tests.trainer.saved import loaded_step, open_folder, save, state_at
from trainer.checkpoint.layout import CheckpointFolder


def test_none_goes_where_all_are_kept(tmp_path: Path) -> None:
    """As --keep-checkpoints 0 asks."""
    checkpoints = open_folder(tmp_path, num_kept=0)
    for step in (1, 2, 3):
        assert save(checkpoints, step)
    assert CheckpointFolder(tmp_path / "checkpoints").names() == ["step-3", "step-2", "step-1"]


def test_what_nfs_keeps_of_a_removed_one_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is open somewhere stays as .nfsXXXX, and its folder with it."""
    remove = shutil.rmtree

    def keep_something(path: Path, *, ignore_errors: bool = False) -> None:
        if not path.name.endswith(".partial"):
            (path / ".nfs0001").write_text("open somewhere")
            for entry in path.iterdir():
                if entry.name != ".nfs0001":
                    entry.unlink()
            if not ignore_errors:
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        else:
            remove(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", keep_something)
    checkpoints = open_folder(tmp_path, num_kept=1)
    for turn in range(4):  # each replaces what was written of step 5 before
        tensors = {"model/w": torch.full((3,), 5.0)}
        checkpoints.save(tensors, state_at(5, validated_step=turn), is_best=False)
        assert checkpoints.wait()
    assert save(checkpoints, 6)  # which removes step 5
    assert save(open_folder(tmp_path, num_kept=1), 5)
    assert save(open_folder(tmp_path, num_kept=1), 6)
    folder = CheckpointFolder(tmp_path / "checkpoints")
    assert folder.names() == ["step-6"]
    folder.open()
    assert folder.names() == ["step-6"], "what is left of a removed one is no checkpoint"
    assert loaded_step(tmp_path) == 6
    monkeypatch.undo()
    folder.open()
    assert not list(folder.path.glob(".step-*"))


def test_the_last_of_several_that_were_replaced_comes_back(tmp_path: Path) -> None:
    """A killed replacement, where an older one had taken the plain name."""
    save(open_folder(tmp_path), 5)
    folder = tmp_path / "checkpoints"
    (folder / "step-5").rename(folder / ".step-5.10.replaced")
    for turn in ("", ".2"):
        (folder / f".step-5{turn}.replaced").mkdir()
    assert loaded_step(tmp_path) == 5
    assert not list(folder.glob(".step-*"))


def test_what_is_left_of_a_removed_one_goes_be_it_a_file_or_a_link(tmp_path: Path) -> None:
    """As where the name of the checkpoint was one; what a link names stays."""
    save(open_folder(tmp_path), 5)
    folder = tmp_path / "checkpoints"
    (folder / ".step-1.removed").write_text("")
    (folder / ".step-2.removed").symlink_to(folder / "step-5")
    (folder / ".step-3.1.removed").symlink_to("nothing")
    assert loaded_step(tmp_path) == 5
    assert {e.name for e in folder.iterdir()} == {"step-5", "latest"}


def test_one_that_was_being_replaced_comes_back(tmp_path: Path) -> None:
    """A death between the two renames leaves neither a gap nor a leftover."""
    save(open_folder(tmp_path), 5)
    folder = tmp_path / "checkpoints"
    (folder / "step-5").rename(folder / ".step-5.replaced")
    assert loaded_step(tmp_path) == 5
    assert {e.name for e in folder.iterdir()} == {"step-5", "latest"}
