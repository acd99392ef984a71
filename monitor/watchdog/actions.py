"""What the watchdog does on its node, by real files, processes and connections."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

from monitor.watchdog import orphans
from monitor.watchdog.bounded import Bounded
from monitor.watchdog.heartbeats import read_children, read_heartbeats
from monitor.watchdog.local_ranks import FILE_S, PROC_S
from monitor.watchdog.stacks import Stack, StackTaker, Target, ask_for_trace
from rundir import procfs
from rundir.paths import RunDir

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from monitor.watchdog.observer import Observation, RankObserver
    from monitor.watchdog.settings import WatchSettings
    from rundir.hang.reports import RankReport

TERM_S = 1.5
"""The launcher gives the monitor 3 s to end; a stuck rank receives no SIGTERM anyway."""

_STACKS_S = 30.0  # py-spy takes its time, and asks one process after the other
_TRACE_S = 3.0  # torch polls its pipe about once a second
_CONNECT_S = 3.0
_BURIED_S = 5.0


class Actions:
    """What the watchdog does on its node; nothing here hangs or raises."""

    def __init__(
        self,
        settings: WatchSettings,
        observer: RankObserver,
        files: Bounded,
        emit: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._observer = observer
        self._files = files
        self._memory = Bounded("end")
        self._network = Bounded("connect")
        self._emit = emit
        self._taker = StackTaker(RunDir(settings.run_dir), settings.attempt)
        self.is_ending = False

    def poll(self) -> Observation:
        """Poll all ranks of this node."""
        return self._observer.poll()

    def stacks(self, ranks: Sequence[RankReport]) -> Mapping[int, Stack]:
        """Take the stacks of these ranks; where files cannot be written, /proc shows a little."""
        launch_id, node = self._settings.launch_id, self._settings.node
        members = self._memory.ask(lambda: orphans.find_ranks(launch_id, node), PROC_S) or {}
        targets = [
            Target(
                rank=rank.rank,
                pid=rank.pid,
                answers=rank.step is not None,
                pids=tuple(members.get(rank.rank, ())),
            )
            for rank in ranks
            if rank.pid is not None
        ]
        taken = self._files.ask(lambda: self._taker.take(targets), _STACKS_S)
        if taken is not None:
            return taken
        return {t.rank: Stack(top=procfs.waits_in(t.pid)) for t in targets}

    def traces(self) -> Sequence[str]:
        """Name the flight recorder's dumps, after asking for them where torch listens."""
        return self._files.ask(self._ask_for_traces, _TRACE_S + FILE_S) or ()

    def reaches_master(self) -> bool | None:
        """Try to connect; a name that cannot be resolved in time counts as not reached."""
        settings = self._settings
        if settings.master_addr is None or settings.master_port is None or settings.num_nodes < 2:  # noqa: PLR2004
            return None
        address = (settings.master_addr, settings.master_port)
        return self._network.ask(lambda: _connects(address), _CONNECT_S + 1) or False

    def end_ranks(self) -> None:
        """End the ranks' commands; the launchers see it, report it, and end."""
        self.is_ending = True
        try:
            self._end_ranks()
        finally:
            self.is_ending = False

    def _end_ranks(self) -> None:
        settings = self._settings
        pids = [r.pid for r in self._observer.poll().ranks if r.pid is not None and r.state]
        known = [who for pid in pids if (who := procfs.identity(pid)) is not None]
        self._memory.post(lambda: orphans.end_ranks(settings.launch_id, settings.node, TERM_S))
        orphans.end_known(known, TERM_S, _BURIED_S)
        self._memory.ask(lambda: None, _BURIED_S)  # what the ranks have started, too

    def emit(self, message: str) -> None:
        """Write a line for a person; it does not wait for a log on a file system that hangs."""
        self._files.post(lambda: self._emit(message))

    def _ask_for_traces(self) -> list[str]:
        prefix = self._settings.trace_pipe
        ranks = [*read_heartbeats(self._settings.heartbeat_dir)] or [
            *read_children(self._settings.heartbeat_dir)
        ]
        before = self._taker.traces()
        asked = ask_for_trace(prefix, ranks) if prefix else []
        deadline_s = time.monotonic() + _TRACE_S
        while asked and time.monotonic() < deadline_s:
            if len(self._taker.traces()) >= len(before) + len(asked):
                break
            time.sleep(0.2)
        return self._taker.traces()


def _connects(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, _CONNECT_S).close()
    except OSError:
        return False
    return True
