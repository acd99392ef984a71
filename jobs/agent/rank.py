"""One rank: its command, its log and the copy of it, its node's monitor, its end."""

from __future__ import annotations

import os
import signal
import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from jobs.agent import binding, contract, heartbeats
from jobs.agent.child import Streams, start
from jobs.agent.command import is_preflight
from jobs.agent.error_file import ErrorFile
from jobs.agent.log import LogFollower
from jobs.agent.monitor import start_monitor
from jobs.agent.output import Output
from jobs.agent.reports import Reports
from jobs.agent.task import Task
from jobs.messages import info
from rundir import channel, codes, heartbeat, paths, procfs
from rundir.hang import ASK
from rundir.paths import RunDir

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobs.agent.child import Child
    from jobs.agent.command import Command
    from jobs.agent.monitor import Monitor
    from jobs.agent.standby import Standby
    from jobs.loop import Loop

_FOLLOW_S = 5
"""How long the job's log may take to accept the rest of a rank's."""
_ERROR_S = 2
"""How long a disk may take to give what a rank wrote of its failure."""
_PEERS_START_S = 30
"""How long local rank 0, when it has finished, waits for the node's other ranks to start."""
_POLL_S = 0.1
_ORPHANED_S = 1
"""How long after the pipe broke to check the parent: a dying process closes its files first."""


def run_rank(
    command: Command, environ: dict[str, str], root: str, loop: Loop, standby: Standby | None
) -> int:
    """Run a rank from its beginning to its end; return its code."""
    rank = _Rank(environ, loop)
    rank.start(command, root, standby.start if standby else start)
    code = rank.wait()
    rank.close(is_finished=code == codes.FINISHED)
    return code


class _Rank:
    """A rank and what belongs to it on this node."""

    def __init__(self, environ: dict[str, str], loop: Loop) -> None:
        self._environ, self._loop = environ, loop
        self._rank, self._node = int(environ["RANK"]), environ["DDP_NODE"]
        self._local_rank = int(environ["LOCAL_RANK"])
        self._is_leader = self._local_rank == 0
        files = RunDir(environ["DDP_RUN_DIR"])
        log = files.rank_log(self._rank)
        if is_preflight(environ):
            log = files.preflight_log(self._node)
        self._task = Task(environ, str(self._rank), log, loop, adopts_orphans=True)
        self._output = Output(1, lambda: loop.wake(self._reports.keep_undelivered))
        if stat.S_ISFIFO(os.fstat(1).st_mode):
            loop.watch(1, self._on_broken)  # the end to write to is never readable, but may break
        self._reports = Reports(environ, self._output, lambda: self._task.is_ending)
        self._directory = _open_heartbeats(environ, is_leader=self._is_leader)
        _offer_socket(environ, self._reports, self._directory, loop)
        kept = contract.error_file(environ)
        self._error_file = ErrorFile(environ.get(contract.ERROR_FILE) or kept, kept)
        self._monitor: Monitor | None = None
        self._follower = LogFollower(
            log, self._task.log_offset, str(self._rank), loop, self._output
        )

    def _on_broken(self) -> None:
        self._loop.forget(1)
        self._loop.after(_ORPHANED_S, self._end_orphan)

    def _end_orphan(self) -> None:
        """End a rank whose slurmstepd is dead.

        srun would wait for it for ever, and its end would be reported to nobody. In place a dead
        script's ranks have been asked to end already, and have their grace.
        """
        if self._task.is_orphan and self._task.child and not self._task.is_ending:
            self._task.child.send(signal.SIGKILL)

    def start(self, command: Command, root: str, begin: Callable[..., Child]) -> None:
        """Start the node's monitor, if this is its first rank, and the command."""
        task = self._task
        if self._is_leader:
            self._monitor = start_monitor(self._environ, root)
        if self._monitor:
            monitor = self._monitor.child
            task.children.append(monitor)
            task.on_ask = lambda: monitor.send(ASK)
        streams = Streams(task.log_fd, task.log_fd)
        place = binding.choose(self._environ, os.sched_getaffinity(0))
        with binding.bound(place):
            child = task.start(command.argv, streams, signal.SIGKILL, start=begin)
        if self._directory:
            self._directory.add_child(child.pid, self._local_rank, is_trainer=command.is_trainer)
        # The first report starts a thread, and a process that forks may have only one: not earlier.
        if self._monitor:
            self._monitor.report(self._reports, lambda: task.is_ending)
        step_id = self._environ.get("SLURM_STEP_ID")
        self._reports.write(
            "rank_up",
            rank=self._rank,
            local_rank=self._local_rank,
            node=self._node,
            pid=child.pid,
            log_offset=task.log_offset,
            step_id=int(step_id) if step_id else None,
            cpus=binding.as_text(place.cpus) if place else None,
            numa=place.numa if place else None,
        )
        self._follower.start()  # after the report, which a rank that prints much would hold up

    def wait(self) -> int:
        """Wait for the command's end; report it, and return its code."""
        code = self._task.wait()
        is_oom = self._task.is_oom()
        if is_oom:
            _explain_oom(self._task, self._node)
        self._reports.receive()  # what the command reported comes before its end
        if code != codes.FINISHED and not self._task.is_ending:
            self._reports.fail()
        # Before anything that takes time: PMIx kills this agent milliseconds after its process.
        self._reports.write(
            "rank_end",
            rank=self._rank,
            node=self._node,
            code=code,
            signal=codes.signal_name(code),
            requested=self._task.is_requested,
            oom=is_oom,
        )
        # In a thread: the disk may hang.
        is_failure = code != codes.FINISHED
        recorded = self._loop.call(self._error_file.read, _ERROR_S) if is_failure else None
        if recorded:
            self._reports.write("failure", rank=self._rank, **recorded._asdict())
        return code

    def close(self, *, is_finished: bool) -> None:
        """End the processes that are left, and hand over the rest of the log and the reports."""
        self._task.sweep()
        if self._monitor:
            if is_finished and self._directory:
                # By hand each rank may have a directory of its own, in which it stays alone.
                is_shared = self._reports.is_supervised
                num_peers = int(self._environ["LOCAL_WORLD_SIZE"]) - 1 if is_shared else 0
                wait_for_peers(self._directory, num_peers, self._loop, lambda: self._task.is_ending)
            self._monitor.stop(self._loop)
        if self._directory:
            self._directory.close(is_leader=self._is_leader)
        self._follower.finish(_FOLLOW_S)
        self._reports.close(self._loop)


def _open_heartbeats(environ: dict[str, str], *, is_leader: bool) -> heartbeats.Directory | None:
    """Make the node's directory, and name it for the command and the monitor."""
    environ.pop(heartbeat.DIRECTORY, None)  # an outer job's, if any
    directory = heartbeats.open_directory(environ)
    if directory is None:
        info(
            f"nobody watches for hung ranks on {environ['DDP_NODE']}: no directory of this user's"
            f" can be made in {paths.MEMORY} or {environ.get('TMPDIR') or '/tmp'}",  # noqa: S108 -- only named
            "launcher",
        )
        return None
    if is_leader:
        heartbeats.sweep(environ["DDP_LAUNCH_ID"], directory.path)
    environ[heartbeat.DIRECTORY] = directory.path
    # Torch's flight recorder dumps when something is written to <this><rank>.pipe.
    name = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
    environ[name] = environ.get(name) or os.path.join(directory.path, "nccl-rank-")
    return directory


def _offer_socket(
    environ: dict[str, str],
    reports: Reports,
    directory: heartbeats.Directory | None,
    loop: Loop,
) -> None:
    """Take events of the rank's processes, if a supervisor reads what this agent prints."""
    environ.pop(channel.AGENT_SOCKET, None)  # an outer agent's, if any
    if directory and reports.is_supervised and reports.listen(directory.socket_path, loop):
        environ[channel.AGENT_SOCKET] = directory.socket_path


def _explain_oom(task: Task, node: str) -> None:
    text = (
        "launcher: out of memory: Killed by the kernel, because this task used more than it may"
        f" on {node}\n"
    )
    with suppress(OSError):
        os.write(task.log_fd, text.encode())


def wait_for_peers(
    directory: heartbeats.Directory,
    num_peers: int,
    loop: Loop,
    is_ending: Callable[[], bool] = lambda: False,
) -> None:
    """Wait for the end of the node's other ranks, which are watched until then.

    A short command may end before its peers start; if the job is ending they may never start.
    """
    deadline_s = time.monotonic() + _PEERS_START_S
    while directory.num_peers_started() < num_peers and time.monotonic() < deadline_s:
        if is_ending():
            break
        loop.pause(_POLL_S)
    for pid in directory.peers():
        while procfs.is_alive(pid):
            loop.pause(_POLL_S)
