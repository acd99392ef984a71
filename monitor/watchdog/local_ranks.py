"""What files and /proc show of this node's ranks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from monitor.watchdog import orphans
from monitor.watchdog.heartbeats import read_children, read_heartbeats
from rundir import procfs
from rundir.paths import RunDir

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from monitor.watchdog.bounded import Bounded
    from monitor.watchdog.settings import WatchSettings
    from rundir.heartbeat import Child, Heartbeat

FILE_S = 1.0
"""How long reading a file of the run may hold up a poll of the ranks."""

PROC_S = 1.0
"""The same of /proc."""


class LocalRanks:
    """This node's ranks; nothing here hangs or raises."""

    def __init__(self, settings: WatchSettings, files: Bounded, memory: Bounded) -> None:
        """Watch the ranks of one launch.

        Args:
            settings: which launch.
            files: makes the calls that a stalled file system may hold up.
            memory: makes the calls that a process the kernel holds may hold up.

        """
        self._settings = settings
        self._files = files
        self._memory = memory

    def heartbeats(self) -> Mapping[int, Heartbeat]:
        """Read the last heartbeats."""
        return read_heartbeats(self._settings.heartbeat_dir)

    def children(self) -> Mapping[int, Child]:
        """Read which commands run."""
        return read_children(self._settings.heartbeat_dir)

    def log_state(self, rank: int) -> Hashable:
        """Give size and time of the rank's log; None while the file system does not answer."""
        path = RunDir(self._settings.run_dir).rank_log(rank)

        def state() -> Hashable:
            status = os.stat(path)
            return (status.st_size, status.st_mtime_ns)

        return self._files.question(state, FILE_S)

    def environment(self, pid: int) -> Mapping[str, str]:
        """Return a process's variables."""
        return self._memory.question(lambda: procfs.environment(pid), PROC_S) or {}

    def times(self, rank: int) -> Mapping[int, float] | None:
        """Return the processor time of each process of a rank; None if /proc gave no answer."""
        settings = self._settings
        ranks = self._memory.question(
            lambda: orphans.find_ranks(settings.launch_id, settings.node), PROC_S
        )
        if ranks is None:
            return None
        spent = {pid: procfs.cpu_s(pid) for pid in ranks.get(rank, [])}
        return {pid: seconds for pid, seconds in spent.items() if seconds is not None}
