"""The lock of a run directory: the file lock.<n> with the highest number, and its one line.

The line is `JOB RESTARTS HOST PID_NAMESPACE PID START LAUNCH_ID`, with - for JOB without Slurm; or
it is `released`.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from rundir import paths

FRESH_S = 60
"""A lock renewed so lately has an owner, where nothing else can be asked."""
RELEASED = "released"


class Owner(NamedTuple):
    """Who holds a lock."""

    job: str
    restarts: str = "-"
    host: str = "-"
    namespace: str = "-"
    pid: str = "-"
    start: str = "-"
    launch_id: str = "-"

    @classmethod
    def parse(cls, line: str) -> Owner:
        """Read the line of a lock."""
        fields = line.split()[: len(cls._fields)]
        return cls(*fields) if fields else cls(RELEASED)

    @property
    def words(self) -> str:
        """For a person."""
        if self.job == "-":
            return f"process {self.pid} on {self.host}"
        if self.host == "-":
            return f"job {self.job}"  # a successor that has not begun
        return f"job {self.job} on {self.host}"

    @property
    def is_here(self) -> bool:
        """Whether ids of its processes mean something to us."""
        return (self.host, self.namespace) == (os.uname().nodename, pid_namespace())


def path(run_dir: str | os.PathLike[str], number: int) -> str:
    """Where the lock with a number is."""
    return os.path.join(run_dir, f"lock.{number}")


def newest(run_dir: str | os.PathLike[str]) -> int:
    """The highest number of a lock, 0 if there is none."""
    found = (paths.JOB_LOCK.fullmatch(name) for name in os.listdir(run_dir))
    return max((int(one[1]) for one in found if one), default=0)


def pid_namespace() -> str:
    """Name the namespace in which this process has its number."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return "-"
