"""One job at a time writes into a run directory.

The lock is the file lock.<n> with the highest number. A job that may take it makes lock.<n+1> as a
hard link to a file of its own, which succeeds for one of several on any shared file system (flock
does not hold on all of them). Numbers only grow, so that a job which has read an old owner cannot
take the lock from a new one. Its line is in rundir/lock.py.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Callable

from jobs.messages import Exit, UsageError, info
from rundir import codes, procfs
from rundir import lock as files
from rundir.lock import FRESH_S, RELEASED, Owner
from rundir.plain import plain_opener, read_text

if TYPE_CHECKING:
    from jobs.backends.slurm import Slurm

RENEW_S = 15
"""How often an owner shows that it lives."""
_FIRST_DELAY_S, _LONGEST_DELAY_S = 2, 60
"""Between two tries: each asks Slurm's controller."""
_AFTER_GRACE_S = 5
ORPHANS = "the ranks of a script that was killed"
_JUST_TAKEN = "another job that has just taken it"


class Lock:
    """The lock of one run directory, for this process.

    Args:
        run_dir: The run directory.
        launch_id: This start's token.
        slurm: None where Slurm cannot be asked.
        job: Its name there.
        restarts: How often Slurm has requeued it.
        grace_s: How long ranks may write after their script was killed.

    """

    def __init__(  # noqa: PLR0913 -- each by its name
        self,
        run_dir: str,
        launch_id: str,
        slurm: Slurm | None,
        *,
        job: str,
        restarts: str,
        grace_s: int,
    ) -> None:
        """Nothing is taken yet."""
        self._run_dir = run_dir
        self._slurm = slurm
        self._job = job or "-"
        self._restarts = restarts
        self._grace_s = grace_s
        self._launch_id = launch_id
        self._asked_s = time.monotonic()
        self.path: str | None = None

    def take(
        self,
        pause: Callable[[float], object],
        is_stopped: Callable[[], bool],
        *,
        may_wait: bool,
        report_every_s: float,
    ) -> None:
        """Return when this job owns the run directory. Raises UsageError and Exit."""
        name = os.path.basename(self._run_dir)
        delay_s, reported_s = _FIRST_DELAY_S, float("-inf")
        owner = self.attempt()
        while owner and not is_stopped():
            # Nobody starts such ranks again: they save, and are gone when their grace is over.
            if owner.startswith(ORPHANS):
                delay_s = _FIRST_DELAY_S
            elif not may_wait:
                raise UsageError(
                    f"the run {name} must have one job at a time",
                    f"that it belongs to {owner}",
                    "wait for its end, or end it, or choose another DDP_RUN_NAME, or set"
                    " DDP_ON_BUSY=wait",
                )
            if time.monotonic() - reported_s >= report_every_s:
                reported_s = time.monotonic()
                info(f"waiting for the run {name}: it belongs to {owner}")
            pause(delay_s)
            delay_s = 2 * delay_s if delay_s < _LONGEST_DELAY_S / 2 else _LONGEST_DELAY_S
            owner = "" if is_stopped() else self.attempt()
        if is_stopped():
            self.release()  # it may just have become ours
            info(f"stopped while waiting for the run {name}; nothing was started")
            raise Exit(codes.STOPPED)

    def attempt(self) -> str:
        """Try once; return the owner, empty if it is this job now. Raises UsageError."""
        mine = os.path.join(self._run_dir, f".lock-{self._launch_id}")
        try:
            return self._attempt(mine)
        finally:
            with suppress(OSError):
                os.unlink(mine)

    def _attempt(self, mine: str) -> str:
        try:
            with open(mine, "w", opener=plain_opener) as file:
                file.write(" ".join(self._own()) + "\n")
        except OSError:
            raise UsageError(
                "the run directory must be writable",
                f"that no file can be written into {self._run_dir}",
                "is the disk full, or a quota reached?",
            ) from None
        number = files.newest(self._run_dir)
        if number:
            lock = files.path(self._run_dir, number)
            try:
                owner = Owner.parse(read_text(lock))
            except (OSError, ValueError) as error:
                if not os.path.lexists(lock):
                    return _JUST_TAKEN
                why = error.strerror if isinstance(error, OSError) else "other bytes"
                raise UsageError(
                    "a run's lock must be a text file that can be read",
                    f"{why} at {lock}",
                    "remove it if no job writes into the run, or choose another DDP_RUN_NAME",
                ) from None
            if self._is_held(owner, number, mine):
                return owner.words
            if self._has_orphans(owner):
                return f"{ORPHANS}, {owner.words}"
        return self._link(mine, number + 1)

    def _link(self, mine: str, number: int) -> str:
        """Make the lock of this number; of several jobs that do so at once, one succeeds."""
        lock = files.path(self._run_dir, number)
        error = None
        try:
            os.link(mine, lock)
        except OSError as failed:  # a network file system may report one for a link that it made
            error = failed
        is_ours = _is_same(mine, lock)
        newest = files.newest(self._run_dir)
        if error and not is_ours and newest < number:  # no other job has one either
            raise UsageError(
                "the run directory must be on a file system that can make hard links",
                f"{error.strerror} in {self._run_dir}",
                "free space or inodes there, or set DDP_OUT to another file system",
            )
        if is_ours and newest == number:
            self.path = lock
            with suppress(OSError):
                os.unlink(files.path(self._run_dir, number - 1))
            return ""
        if is_ours:  # there is a higher one: this one was old
            with suppress(OSError):
                os.unlink(lock)
        return _JUST_TAKEN

    def _own(self) -> Owner:
        pid = str(os.getpid())
        host, namespace = os.uname().nodename, files.pid_namespace()
        start, launch_id = start_of(pid), self._launch_id
        return Owner(self._job, self._restarts, host, namespace, pid, start, launch_id)

    def _is_held(self, owner: Owner, number: int, mine: str) -> bool:
        """Whether the owner lives. In doubt it does."""
        if owner.job == RELEASED:
            return False
        if self._slurm and owner.job == self._job and owner.restarts != self._restarts:
            return False  # this very job, before its requeue
        lock = files.path(self._run_dir, number)
        if self._slurm and owner.job not in ("-", self._job):
            lives = self._slurm.is_listed(owner.job)
        elif owner.is_here:
            lives = owner.start == start_of(owner.pid)
        else:
            return _is_fresh(lock, mine)
        # Of another user Slurm (PrivateData) and /proc (hidepid) may show nothing.
        return lives or (_is_anothers(lock, mine) and _is_fresh(lock, mine))

    def _has_orphans(self, owner: Owner) -> bool:
        """Whether anything on this machine still runs that the dead owner started.

        In any of its attempts. It may be writing a checkpoint, but no longer than the grace.
        """
        job, *rest = owner.launch_id.rsplit(".", 2)
        if not owner.is_here or rest[1:] != [owner.pid]:
            return False
        if time.monotonic() > self._asked_s + self._grace_s + _AFTER_GRACE_S:
            return False
        theirs = re.compile(os.fsencode(rf"DDP_LAUNCH_ID={re.escape(job)}\..*\.{owner.pid}"))
        pairs = (pair for pid in procfs.others() for pair in procfs.variables(pid))
        return any(map(theirs.fullmatch, pairs))

    def renew(self) -> None:
        """Show jobs that cannot ask Slurm that the owner lives."""
        if self.path:
            with suppress(OSError):
                os.utime(self.path)

    def undo(self) -> None:
        """Give it back as if it had not been taken: without one before it, it is removed."""
        if self.path == files.path(self._run_dir, 1):
            with suppress(OSError):
                os.unlink(self.path)
            self.path = None
        self.release()

    def release(self, job: str = "") -> None:
        """Leave the run to anybody, or to a successor that waits in Slurm's queue."""
        if not self.path:
            return
        line, new = " ".join(Owner(job)) if job else RELEASED, f"{self.path}.new"
        try:
            with open(new, "w", opener=plain_opener) as file:
                file.write(f"{line}\n")
            os.replace(new, self.path)
        except OSError:  # a full disk
            with suppress(OSError):
                os.unlink(new)
        self.path = None


def start_of(pid: str) -> str:
    """When a process started, in the kernel's ticks: a number used again is another process."""
    found = procfs.identity(int(pid)) if pid.isdecimal() else None
    return str(found.start_ticks) if found else ""


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _is_anothers(lock: str, mine: str) -> bool:
    try:
        return os.stat(lock).st_uid != os.stat(mine).st_uid
    except OSError:
        return False


def _is_fresh(lock: str, now: str) -> bool:
    """Whether a lock was renewed lately, by the file system's clock: machines' clocks differ."""
    try:
        renewed_s = os.stat(lock).st_mtime
    except OSError:
        return False
    try:
        return os.stat(now).st_mtime - renewed_s < FRESH_S
    except OSError:
        return True
