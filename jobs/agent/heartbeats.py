"""Where the ranks of this node leave their heartbeats, for the monitor to read."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from rundir import heartbeat, paths, procfs
from rundir.plain import names_in

if TYPE_CHECKING:
    from collections.abc import Mapping

_ABANDONED_S = 600
_ENDED_PREFIX = "ended-"
"""How the file of a rank begins once it has ended: no reader looks for that name."""


class Directory:
    """The directory of one node's ranks, and this rank's own files in it."""

    def __init__(self, path: str, rank: str) -> None:
        """Use the directory at `path`, which is there."""
        self.path = path
        self._rank = rank
        self.socket_path = os.path.join(path, heartbeat.AGENT_PREFIX + rank)
        self._child_path = os.path.join(path, heartbeat.CHILD_PREFIX + rank)

    def add_child(self, pid: int, local_rank: int, *, is_trainer: bool) -> None:
        """Tell the monitor which process this rank's command is."""
        line = heartbeat.child_line(pid, local_rank, is_trainer=is_trainer)
        # If memory is full, it is not watched.
        with suppress(OSError), open(self._child_path, "wb") as file:
            file.write(line)

    def num_peers_started(self) -> int:
        """Return how many of the node's other ranks have started, those included that ended."""
        prefixes = (heartbeat.CHILD_PREFIX, _ENDED_PREFIX)
        own = os.path.basename(self._child_path)
        return sum(name.startswith(prefixes) and name != own for name in names_in(self.path))

    def peers(self) -> list[int]:
        """Return the commands of this node's other ranks, some of which may have ended."""
        return [pid for path, pid in _children(self.path) if path != self._child_path]

    def close(self, *, is_leader: bool) -> None:
        """Take this rank out, or, as the node's first rank, remove everything.

        Under its new name the rank's file still shows that the rank was there, because the first
        rank waits for those that are only starting. Its process is no longer read from it, because
        another one may get the number.
        """
        with suppress(OSError):
            os.unlink(self.socket_path)
        with suppress(OSError):
            os.replace(self._child_path, os.path.join(self.path, _ENDED_PREFIX + self._rank))
        if is_leader:
            _remove(self.path)


def open_directory(environ: Mapping[str, str], memory: str = paths.MEMORY) -> Directory | None:
    """Make this node's directory, in memory if it can be; None where it cannot be made."""
    rank = environ["RANK"]
    name = paths.heartbeats_prefix(environ["DDP_LAUNCH_ID"]) + environ["DDP_NODE"]
    for parent in (memory, environ.get("TMPDIR") or "/tmp"):  # noqa: S108 -- see _is_ours
        path = os.path.join(parent, name)
        with suppress(OSError):  # another rank of this node may have made it
            os.mkdir(path, 0o700)
        if _is_ours(path):
            return Directory(path, rank)
    return None


def _is_ours(path: str) -> bool:
    """Whether it is a directory of this user: its name can be guessed, and another may have it."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def sweep(launch_id: str, fresh: str, memory: str = paths.MEMORY) -> None:
    """Remove what other jobs left behind in this node's memory.

    These are directories of agents that were killed together with their monitors, and snapshots.
    The snapshots of this job, `launch_id`, stay: they are for this start.
    Ages are measured against `fresh`, a directory just made: this process's clock may be off.
    """
    own, prefixes = paths.snapshots_prefix(launch_id), (paths.HEARTBEATS, paths.SNAPSHOTS)
    names = [n for n in names_in(memory) if n.startswith(prefixes) and not n.startswith(own)]
    for path in (os.path.join(memory, name) for name in names):
        with suppress(OSError):
            age_s = os.stat(fresh).st_mtime - os.lstat(path).st_mtime
            is_abandoned = age_s > _ABANDONED_S and _is_ours(path)
            if is_abandoned and not any(procfs.is_alive(pid) for _, pid in _children(path)):
                _remove(path)


def _remove(directory: str) -> None:
    """Remove a directory of ours, in which there are files only."""
    with suppress(OSError):
        for name in os.listdir(directory):
            with suppress(OSError):
                os.unlink(os.path.join(directory, name))
        os.rmdir(directory)


def _children(directory: str) -> list[tuple[str, int]]:
    """Read each rank's file and the process it names."""
    found = []
    for name in names_in(directory):
        path = os.path.join(directory, name)
        if name.startswith(heartbeat.CHILD_PREFIX):
            with suppress(OSError), open(path, "rb") as file:
                child = heartbeat.parse_child(0, file.read(64))
                if child:
                    found.append((path, child.pid))
    return found
