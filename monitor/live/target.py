"""What to watch: which run directory, and which logs belong to it, as they appear."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from monitor.errors import UserError
from monitor.logs import files as logfiles
from monitor.logs.files import is_run, written_s
from rundir.paths import run_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class Target:
    """What was asked for.

    Where there is a folder, logs of it belong to it: those of the run's jobs, or of `job`, or all.
    """

    run_dir: str | None = None
    folder: str | None = None
    job: str | None = None
    files: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What to call it where no run has a name."""
        if self.job is not None:
            return run_name(self.job)
        return self.folder or ", ".join(Path(path).name for path in self.files)

    def logs(self, job_ids: Sequence[str]) -> list[str]:
        """List the logs that are there now.

        Args:
            job_ids: of the run's attempts, the last one's last; its logs alone are of now.

        Raises:
            OSError: the folder cannot be read.

        """
        if self.folder is None:
            return list(self.files)
        wanted = None if self.job is None else [self.job]
        if self.run_dir is not None:
            wanted = list(job_ids[-1:]) or logfiles.jobs_by_name(Path(self.run_dir).name)
        return logfiles.in_folder(self.folder, wanted)


def resolve(paths: Sequence[str], env: Mapping[str, str]) -> Target:
    """Return what is meant by the paths of a command line.

    One directory is a run's, or holds logs and perhaps runs: then the newest job's is meant.
    No path means the newest run of $DDP_OUT, or of ./out.

    Raises:
        UserError: nothing of that kind is there.

    """
    if not paths:
        return _newest(env.get("DDP_OUT") or "out")
    if len(paths) == 1 and os.path.isdir(paths[0]):  # pathlib takes "" for "."
        return _run(paths[0]) if is_run(paths[0]) else _folder(paths[0])
    for path in paths:
        try:
            is_file = stat.S_ISREG(os.stat(path).st_mode)
        except OSError as error:
            raise logfiles.unreadable(path, error) from error
        if not is_file:
            raise UserError(
                "watch must be given one run directory, one directory of logs, or logs",
                path,
                "name for example out/slurm-123, out/ or out/*.gutil",
            )
    return Target(files=tuple(dict.fromkeys(paths)))


def _newest(out: str) -> Target:
    try:
        found = logfiles.runs_in(out)
    except OSError:
        found = []
    if found:
        return _run(max(found, key=written_s))
    if os.path.isdir(out):  # pathlib's raises where it lacks the permission
        with logfiles.reading_folder(out):
            is_folder = bool(logfiles.in_folder(out))
        if is_folder:
            return _folder(out)
    raise UserError(
        "watch must have a run to watch",
        f"none in {out}",
        "name a run directory, such as out/slurm-123, or set DDP_OUT",
    )


def _run(path: str) -> Target:
    whole = os.path.abspath(path)  # a link is not followed: the logs lie beside it
    return Target(run_dir=whole, folder=str(Path(whole).parent))


def _folder(path: str) -> Target:
    """Choose the job whose log was written last; with the run directory of that name, if any."""
    with logfiles.reading_folder(path):
        logs = [log for log in logfiles.in_folder(path) if os.path.isfile(log)]
    if not logs:
        return Target(folder=path)  # they may appear
    job, _ = logfiles.named(max(logs, key=os.path.getmtime))
    run_dir = None if job is None else str(Path(path, run_name(job)))
    if run_dir is not None and is_run(run_dir):
        return _run(run_dir)
    return Target(folder=path, job=job)
