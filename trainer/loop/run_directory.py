"""The run directory: which one, one trainer in it at a time, and which start in it this one is.

Under `jobs/prelaunch.sh` all three are decided before the trainer starts. By hand or by torchrun
they are decided here, by rank 0 for all ranks.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import socket
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from rundir import events, paths, plain
from rundir import lock as job_lock
from trainer.errors import UserError
from trainer.telemetry.events import EventLog

if TYPE_CHECKING:
    from trainer.distributed.mesh import Mesh
    from trainer.environment import RunSettings

_NO_ID = ("", "none")
"""torchrun's word for a run without --rdzv-id is the latter."""


@dataclass(frozen=True, kw_only=True)
class RunDirectory:
    """A run directory, the same on all ranks."""

    path: Path
    events: EventLog
    attempt: int
    lock: int | None = None
    """Rank 0's descriptor: the lock is held while it is open, so until this process ends."""

    def abandon(self) -> None:
        """Leave nothing behind of a start that was refused; what others wrote stays."""
        for name in (paths.CHECKPOINTS, paths.DEBUG):
            with contextlib.suppress(OSError):
                (self.path / name).rmdir()
        if [entry.name for entry in self.path.iterdir()] == [paths.TRAINER_LOCK]:
            (self.path / paths.TRAINER_LOCK).unlink()
        with contextlib.suppress(OSError):
            self.path.rmdir()


def open_run_directory(chosen: Path | None, settings: RunSettings, mesh: Mesh) -> RunDirectory:
    """Create the run directory that was `chosen`, or a new one under `out/`, and lock it.

    Raises UserError, on all ranks alike, for one that cannot be written to or is in use.
    """
    path = (chosen or Path("out") / _new_name(settings, mesh)).absolute()
    try:
        _make(path)
    except OSError as error:
        raise UserError(
            f"run directory {path}",
            rule="be a directory that can be written to",
            found=error,
            remedy="give another --out",
        ) from error
    lock = None
    if settings.run_dir is None:  # else the job has locked it, and counted its starts
        lock = _lock_for_all(path, mesh)
        settings = replace(settings, attempt=_next_attempt(path, mesh))
    return RunDirectory(
        path=path,
        events=EventLog(path=path / paths.EVENTS, attempt=settings.attempt, host=settings.node),
        attempt=settings.attempt,
        lock=lock,
    )


def _make(path: Path) -> None:
    """Raise OSError unless it can be written to, and so can checkpoints that it has."""
    path.mkdir(parents=True, exist_ok=True)
    for folder in (path, path / paths.CHECKPOINTS):
        if os.path.lexists(folder) and not os.access(folder, os.W_OK | os.X_OK):
            number = errno.EACCES if folder.is_dir() else errno.ENOTDIR
            raise OSError(number, os.strerror(number), str(folder))


def _new_name(settings: RunSettings, mesh: Mesh) -> str:
    """Name a directory after torchrun's run, so that its restarts find it, or after this start."""
    if settings.torchrun_id not in _NO_ID:
        return "torchrun-" + re.sub(r"[^A-Za-z0-9._-]", "-", settings.torchrun_id)
    mine = [time.time(), float(os.getpid())]
    if settings.torchrun_id:
        torchrun = psutil.Process(os.getppid())
        mine = [torchrun.create_time(), float(torchrun.pid)]
    began_s, pid = mesh.max(mine if mesh.ranks.is_main else [0.0, 0.0])
    return f"local-{time.strftime('%Y%m%dT%H%M%S', time.localtime(began_s))}-{int(pid)}"


def _lock_for_all(path: Path, mesh: Mesh) -> int | None:
    """Lock `path` on rank 0; all ranks get the outcome."""
    lock, owner = None, ""
    if mesh.ranks.is_main:
        owner = _job_in(path)
        if not owner:
            lock, owner = _lock(path / paths.TRAINER_LOCK)
    if mesh.max([float(bool(owner))])[0]:
        raise UserError(
            f"run directory {path}",
            rule="be used by one run at a time",
            found=owner or "another run in it",
            remedy="wait for its end, or give another --out",
        )
    return lock


def _lock(path: Path) -> tuple[int | None, str]:
    """Lock a file; return its descriptor, or None and its owner.

    A lock of POSIX belongs to one process: the workers of its data loaders, which may outlive it,
    do not have it. File systems without locks (ENOLCK) go without.
    """
    try:
        descriptor = plain.plain_opener(str(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    except OSError:
        return None, ""  # what must write here reports that it cannot
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            return descriptor, ""
        owner = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
        os.close(descriptor)
        return None, owner or "another run in it"
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return descriptor, ""


def _job_in(path: Path) -> str:
    """Name the job whose `jobs/prelaunch.sh` holds `path`, "" where none does."""
    newest = job_lock.path(path, job_lock.newest(path))
    try:
        owner = job_lock.Owner.parse(plain.read_text(newest))
        age_s = time.time() - Path(newest).stat().st_mtime
        is_gone = owner.is_here and not psutil.pid_exists(int(owner.pid))
    except (OSError, ValueError, OverflowError):
        return ""  # it was just given back, or is no lock
    is_free = owner.job == job_lock.RELEASED or age_s > job_lock.FRESH_S or is_gone
    return "" if is_free else owner.words


def _next_attempt(path: Path, mesh: Mesh) -> int:
    """Count a start in a directory that others have used; rank 0 counts for all."""
    mine = [float(_last_attempt(path / paths.EVENTS)) if mesh.ranks.is_main else 0.0]
    return int(mesh.max(mine)[0]) + 1


def _last_attempt(path: Path) -> int:
    """Return the highest attempt; half a line of a killed writer, and a pipe, count as nothing."""
    try:
        with plain.open_plain(path) as file:
            found, _ = events.read(file.read())
    except OSError:
        return 0
    attempts = [event.get("attempt") for event in found]
    return max((number for number in attempts if isinstance(number, int)), default=0)
