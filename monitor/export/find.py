"""Which logs and which runs are meant by what a user names."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monitor.errors import UserError
from monitor.export import run as export_run
from monitor.logs import files

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Found:
    """Paths, each file and each directory once."""

    logs: tuple[str, ...]
    runs: tuple[str, ...]


def find(paths: Sequence[str]) -> Found:
    """Find logs and runs.

    Args:
        paths: logs; run directories, which stand for the logs of their last job as well; and
            directories that hold logs or run directories.

    Raises:
        UserError: a directory holds neither, or cannot be looked into.

    """
    logs: list[str] = []
    runs: list[str] = []
    for path in paths:
        if export_run.is_run(path):
            runs.append(path)
            logs += _beside(path)
        elif os.path.isdir(path):  # noqa: PTH112 - many
            inner = [one for one in _folders_in(path) if export_run.is_run(one)]
            here = files.in_folder(path)
            if not here and not inner:
                raise UserError(
                    f"directory: must hold .gutil files, or run directories; found none in {path}:"
                    " name the output directory of a job"
                )
            logs += here
            runs += inner
        else:
            logs.append(path)
    return Found(_each_once(logs), _each_once(runs))


def _each_once(paths: Sequence[str]) -> tuple[str, ...]:
    found: dict[str, str] = {}
    for path in paths:
        found.setdefault(os.path.realpath(path), path)
    return tuple(found.values())


def _folders_in(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return sorted(entry.path for entry in entries if entry.is_dir())
    except OSError as error:
        raise UserError(
            f"directory: must be one that can be looked into; found {path}: {error.strerror}:"
            " name the output directory of a job"
        ) from error


def _beside(run: str) -> list[str]:
    job = export_run.job_in(export_run.events_of(run))
    if job is None:
        return []
    whole = os.path.abspath(run)  # noqa: PTH100 - a link is not followed: logs lie beside it
    return files.in_folder(os.path.dirname(whole), [job])  # noqa: PTH120
