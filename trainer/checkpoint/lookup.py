"""Which checkpoint, or file of weights, a user means by a path."""

from __future__ import annotations

import os
from pathlib import Path

from rundir import paths
from rundir.paths import step_of
from trainer.checkpoint import manifest
from trainer.checkpoint.layout import CheckpointFolder
from trainer.errors import UserError
from trainer.workloads.llama_hf import is_hugging_face

SAFETENSORS, _TORCH = ".safetensors", (".pt", ".pth")
"""Endings of files of weights."""
_POINTERS = (paths.LATEST, paths.BEST)


def find(path: Path) -> Path:
    """Return the checkpoint that `path` means: one, what `best` names, or the last one of a run.

    Raises UserError when there is none.
    """
    if path.name in _POINTERS and not path.is_dir():
        return _follow(path)
    if (step_of(path.name) is not None and path.is_dir()) or (path / manifest.FILE).exists():
        return path
    folder = find_folder(path)
    if folder is None:
        raise UserError(
            str(path),
            rule="be a checkpoint, or a run directory that has one",
            found="none",
            remedy="name a folder such as out/RUN/checkpoints/step-100",
        )
    return folder.path / folder.names()[0]


def _follow(pointer: Path) -> Path:
    """Return what `RUN/checkpoints/best`, or RUN/best, names. Raises UserError if it names none."""
    for folder in (pointer.parent, pointer.parent / paths.CHECKPOINTS):
        name = CheckpointFolder(folder).pointed(pointer.name)
        if name is not None:
            return folder / name
    raise UserError(
        str(pointer),
        rule="be a pointer to a checkpoint that is there",
        found="none",
        remedy="name the run directory for its last one, or one such as checkpoints/step-100",
    )


def find_folder(path: Path) -> CheckpointFolder | None:
    """Return the checkpoints that `path`, a run directory or its `checkpoints/`, holds; or None.

    Raises UserError if they cannot be read.
    """
    for candidate in (path / paths.CHECKPOINTS, path):
        folder = CheckpointFolder(candidate)
        try:
            if folder.names():
                return folder
        except OSError as error:
            raise UserError(
                str(candidate),
                rule="be a folder that can be read",
                found=error.strerror,
                remedy="look at its permissions and its file system",
            ) from error
    return None


def check_initial(source: Path) -> None:
    """Raise UserError unless --init-from names a file, a Hugging Face folder or a checkpoint."""
    if source.suffix in (SAFETENSORS, *_TORCH):
        if not source.is_file():
            raise UserError(
                f"--init-from {source}",
                rule="be a file that is there",
                found="none",
                remedy="correct the path",
            )
    elif not is_hugging_face(source):
        find(source)


def requested(request: str, folder: Path) -> Path:
    """Return what `--resume` names: a checkpoint anywhere, or one in the run's own `folder`."""
    return _named(request) or folder / request


def is_missing(request: str) -> bool:
    """Whether `--resume` names another run's checkpoint, by its path, which is not there.

    Raises UserError for a path that cannot be looked at.
    """
    return _named(request) is None and os.sep in request


def _named(request: str) -> Path | None:
    try:
        # Absolute: another node may have been started elsewhere.
        return Path(request).absolute() if Path(request).exists() else None
    except OSError as error:
        raise incomplete(request, str(error.strerror)) from error


def incomplete(request: str, problem: str) -> UserError:
    """Return what ends a run whose `--resume` names no checkpoint, or a damaged one."""
    return UserError(
        f"--resume {request}",
        rule="be a complete checkpoint",
        found=problem,
        remedy="name a folder such as out/RUN/checkpoints/step-100, or --resume auto",
    )
