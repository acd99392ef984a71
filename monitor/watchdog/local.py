"""The watchdog of this node, put together of real files and real processes."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING

from monitor.watchdog import orphans, processes
from monitor.watchdog.bounded import Bounded
from monitor.watchdog.event_channel import EventChannel
from monitor.watchdog.heartbeats import read_children, read_heartbeats
from monitor.watchdog.node import Place, Watchdog
from monitor.watchdog.observer import RankObserver
from monitor.watchdog.stacks import Stack, StackTaker, Target, ask_for_trace
from monitor.watchdog.timeouts import Timeouts
from rundir import channel
from rundir.events import EventLog
from rundir.paths import RunDir

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from monitor.logs.sample import Reading
    from monitor.watchdog.observer import Observation
    from monitor.watchdog.settings import WatchSettings
    from rundir.hang.reports import RankReport
    from rundir.heartbeat import Child, Heartbeat

_FILE_S = 1.0  # how long reading a file of the run may hold up a poll of the ranks
_PROC_S = 1.0
_STACKS_S = 30.0  # py-spy takes its time, and asks one process after the other
_TRACE_S = 3.0  # torch polls its pipe about once a second
_CONNECT_S = 3.0
_TERM_S = 1.5  # the launcher gives the monitor 3 s to end; a stuck rank receives no SIGTERM anyway
_LEAVE_S = _TERM_S + 0.5
_BURIED_S = 5.0


class LocalNode:
    """This node's ranks, as files and /proc show them."""

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
        return self._files.question(lambda: _state_of_file(path), _FILE_S)

    def environment(self, pid: int) -> Mapping[str, str]:
        """Return a process's variables."""
        return self._memory.question(lambda: processes.environment(pid), _PROC_S) or {}

    def times(self, rank: int) -> Mapping[int, float] | None:
        """Return the processor time of each process of a rank; None if /proc gave no answer."""
        ranks = self._ranks()
        if ranks is None:
            return None
        spent = {pid: processes.cpu_s(pid) for pid in ranks.get(rank, [])}
        return {pid: seconds for pid, seconds in spent.items() if seconds is not None}

    def processes(self) -> Mapping[int, list[int]]:
        """Find all processes of each rank, as far as /proc answers."""
        return self._ranks() or {}

    def _ranks(self) -> Mapping[int, list[int]] | None:
        settings = self._settings
        return self._memory.question(
            lambda: orphans.find_ranks(settings.launch_id, settings.node), _PROC_S
        )


def _state_of_file(path: str) -> Hashable:
    status = os.stat(path)  # noqa: PTH116 - pathlib costs start time
    return (status.st_size, status.st_mtime_ns)


class LocalActions:
    """What the watchdog does on this node."""

    def __init__(
        self,
        settings: WatchSettings,
        observer: RankObserver,
        files: Bounded,
        emit: Callable[[str], None],
    ) -> None:
        """Act on the ranks of one launch.

        Args:
            settings: which launch.
            observer: classifies its ranks.
            files: makes the calls that a stalled file system may hold up.
            emit: writes a line for a person.

        """
        self._settings = settings
        self._observer = observer
        self._files = files
        self._memory = Bounded("end")
        self._network = Bounded("connect")
        self._say = emit
        self._taker = StackTaker(f"{settings.run_dir}/debug", settings.attempt)
        self.is_ending = False

    def poll(self) -> Observation:
        """Poll all ranks of this node."""
        return self._observer.poll()

    def stacks(self, ranks: Sequence[RankReport]) -> Mapping[int, Stack]:
        """Take the stacks of these ranks; where files cannot be written, /proc shows a little."""
        launch_id, node = self._settings.launch_id, self._settings.node
        members = self._memory.ask(lambda: orphans.find_ranks(launch_id, node), _PROC_S) or {}
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
        return {t.rank: Stack(top=processes.waits_in(t.pid)) for t in targets}

    def traces(self) -> Sequence[str]:
        """Name the flight recorder's dumps, after asking for them where torch listens."""
        return self._files.ask(self._ask_for_traces, _TRACE_S + _FILE_S) or ()

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
        known = [who for pid in pids if (who := processes.identity(pid)) is not None]
        _send_all(known, signal.SIGTERM)
        self._memory.post(lambda: orphans.end_ranks(settings.launch_id, settings.node, _TERM_S))
        _wait_for_end(known, _TERM_S)
        _send_all(known, signal.SIGKILL)
        _wait_for_end(known, _BURIED_S)
        self._memory.ask(lambda: None, _BURIED_S)  # what the ranks have started, too

    def emit(self, message: str) -> None:
        """Write a line for a person; it does not wait for a log on a file system that hangs."""
        self._files.post(lambda: self._say(message))

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


def _send_all(known: Sequence[processes.Identity], signum: signal.Signals) -> None:
    for who in known:
        if processes.identity(who.pid) == who:
            orphans.send(who.pid, signum)


def _wait_for_end(known: Sequence[processes.Identity], limit_s: float) -> None:
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        if not any(processes.identity(w.pid) == w and processes.state(w.pid) for w in known):
            return
        time.sleep(0.05)


class LocalWatchdog:
    """Runs the watchdog in a thread of the recorder's process, which it does not disturb."""

    def __init__(self, settings: WatchSettings, emit: Callable[[str], None]) -> None:
        """Put it together; `start` starts it."""
        self._settings = settings
        self._say = emit
        self._files = Bounded("files")
        self._end = threading.Event()
        deliver = channel.reporter(settings.run_dir, settings.node)
        self._channel = EventChannel(
            EventLog(deliver, "monitor", settings.attempt, settings.node),
            RunDir(settings.run_dir).events,
            self._files,
        )
        timeouts = Timeouts(settings.hang_timeout_s)
        node = LocalNode(settings, self._files, Bounded("memory"))
        self._observer = RankObserver(node, timeouts)
        self._actions = LocalActions(settings, self._observer, self._files, emit)
        self._watchdog = Watchdog(
            Place(
                node=settings.node,
                node_rank=settings.node_rank,
                num_nodes=settings.num_nodes,
                attempt=settings.attempt,
                master=settings.master,
                is_supervised=settings.is_supervised,
            ),
            self._actions,
            self._channel,
            timeouts.poll_s(),
        )

    def see_gpus(self, reading: Reading) -> None:
        """Take what the recorder has just read."""
        self._observer.see_gpus(reading)

    def ask(self) -> None:
        """Take the supervisor's wish for a report."""
        self._watchdog.ask()

    def run(self) -> None:
        """Watch until `end` is called or there is nothing left to decide."""
        delay_s: float | None = 0.0
        while delay_s is not None and not self._end.wait(delay_s):
            try:
                delay_s = self._watchdog.tick()
            except Exception as error:  # noqa: BLE001 - the monitor never fails the job
                self._say(f"watchdog: {type(error).__name__}: {error}: going on")
                delay_s = 5.0

    def report_last_heartbeats(self) -> None:
        """Report where each rank was at the end; no node waits for a report of this one then."""
        now_s = time.monotonic()
        ranks = {
            heartbeat.rank: {
                "step": heartbeat.step,
                "phase": heartbeat.phase,
                "age_s": round(now_s - heartbeat.time_ns / 1e9, 3),
            }
            for heartbeat in sorted(
                read_heartbeats(self._settings.heartbeat_dir).values(),
                key=lambda heartbeat: heartbeat.rank,
            )
        }
        settings = self._settings
        self._channel.report(
            "last_beats", node=settings.node, node_rank=settings.node_rank, ranks=ranks
        )

    def end(self) -> None:
        """Watch no more; ranks that are being ended are ended first."""
        self._end.set()
        deadline_s = time.monotonic() + _LEAVE_S
        while self._actions.is_ending and time.monotonic() < deadline_s:
            time.sleep(0.02)
