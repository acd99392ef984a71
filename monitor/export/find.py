"""Which logs and which runs are meant by what a user names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from monitor.errors import UserError
from monitor.export import run as export_run
from monitor.logs import files
from monitor.logs.files import is_run

if TYPE_CHECKING:
    from collections.abc import Sequence


def find(paths: Sequence[str]) -> tuple[list[str], list[str]]:
    """Find logs and runs, each file and each directory once.

    Args:
        paths: logs; run directories, which stand for the logs of their last job as well; and
            directories that hold logs or run directories.

    Raises:
        UserError: a directory holds neither, or cannot be read.

    """
    logs: list[str] = []
    runs: list[str] = []
    for path in paths:
        if is_run(path):
            runs.append(path)
            logs += _beside(path)
        elif os.path.isdir(path):
            with files.reading_folder(path):
                here, inner = files.in_folder(path), files.runs_in(path)
            if not here and not inner:
                raise UserError(
                    "a directory must hold .gutil files, or run directories",
                    f"none in {path}",
                    "name the output directory of a job",
                )
            logs += here
            runs += inner
        else:
            logs.append(path)
    return _each_once(logs), _each_once(runs)


def _each_once(paths: Sequence[str]) -> list[str]:
    found: dict[str, str] = {}
    for path in paths:
        found.setdefault(os.path.realpath(path), path)
    return list(found.values())


def _beside(run: str) -> list[str]:
    job = export_run.job_in(export_run.events_of(run))
    if job is None:
        return []
    whole = os.path.abspath(run)  # a link is not followed: logs lie beside it
    folder = os.path.dirname(whole)
    with files.reading_folder(folder):
        return files.in_folder(folder, [job])
