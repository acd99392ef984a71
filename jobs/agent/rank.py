"""One rank: its command, its log and the copy of it, its node's monitor, its end."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from jobs import processes
from jobs.agent import heartbeats
from jobs.agent.child import Streams
from jobs.agent.log import LogFollower
from jobs.agent.monitor import start_monitor
from jobs.agent.output import Output
from jobs.agent.reports import Reports
from jobs.agent.task import Task
from jobs.messages import info
from rundir import channel, codes, heartbeat
from rundir.paths import RunDir

if TYPE_CHECKING:
    from jobs.agent.command import Command
    from jobs.agent.loop import Loop

_FOLLOW_S = 5
"""How long the job's log may take to accept the rest of a rank's."""
_POLL_S = 0.1


def run_rank(command: Command, environ: dict[str, str], root: str, loop: Loop) -> int:
    """Run a rank from its beginning to its end; return its code."""
    rank, node = environ["RANK"], environ["DDP_NODE"]
    is_leader = environ["LOCAL_RANK"] == "0"
    task = Task(environ, rank, RunDir(environ["DDP_RUN_DIR"]).rank_log(int(rank)), loop)
    output = Output(1, loop.wake)
    reports = Reports(environ, output, lambda: task.is_ending)
    loop.on_wake = reports.keep_undelivered
    directory = _open_heartbeats(environ, is_leader=is_leader)
    _offer_socket(environ, reports, directory, loop)
    monitor = start_monitor(environ, root, reports) if is_leader else None
    if monitor:
        task.children.append(monitor.child)

    follower = LogFollower(task.log, task.log_offset, rank, loop, output)
    child = task.start(command.argv, Streams(task.log_fd, task.log_fd), signal.SIGKILL)
    if directory:
        local_rank = int(environ["LOCAL_RANK"])
        directory.add_child(child.pid, local_rank, is_trainer=command.is_trainer)
    follower.start()
    step_id = environ.get("SLURM_STEP_ID")
    reports.write(
        "rank_up",
        rank=int(rank),
        local_rank=int(environ["LOCAL_RANK"]),
        node=node,
        pid=child.pid,
        log_offset=task.log_offset,
        step_id=int(step_id) if step_id else None,
    )
    code = task.wait()
    is_oom = task.is_oom()
    if is_oom:
        _explain_oom(task, node)
    reports.receive()
    reports.write(
        "rank_end",
        rank=int(rank),
        node=node,
        code=code,
        signal=codes.signal_name(code),
        requested=task.is_requested,
        oom=is_oom,
    )
    task.sweep()
    if monitor:
        if code == 0 and directory:
            _wait_for_peers(directory, loop)
        monitor.stop(loop, reports)
    if directory:
        directory.close(is_leader=is_leader)
    follower.finish(_FOLLOW_S)
    reports.close(loop)
    return code


def _open_heartbeats(environ: dict[str, str], *, is_leader: bool) -> heartbeats.Directory | None:
    """Make the node's directory, and name it for the command and the monitor."""
    environ.pop(heartbeat.DIRECTORY, None)  # an outer job's, if any
    if is_leader:
        heartbeats.sweep()
    directory = heartbeats.open_directory(environ)
    if directory is None:
        info(
            f"nobody watches for hung ranks on {environ['DDP_NODE']}: neither {heartbeats.MEMORY}"
            f" nor {environ.get('TMPDIR') or '/tmp'} can be written",  # noqa: S108 -- only named
            "launcher",
        )
        return None
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
    """Where a supervisor reads what this agent prints, it takes its processes' events, too."""
    environ.pop(channel.AGENT_SOCKET, None)  # an outer agent's, if any
    if directory and reports.is_supervised and reports.listen(directory.socket_path, loop):
        environ[channel.AGENT_SOCKET] = directory.socket_path


def _explain_oom(task: Task, node: str) -> None:
    text = (
        "launcher: out of memory: Killed by the kernel, because this task used more than it may"
        f" on {node}; ask for more with --mem\n"
    )
    try:
        os.write(task.log_fd, text.encode())
    except OSError:
        return


def _wait_for_peers(directory: heartbeats.Directory, loop: Loop) -> None:
    """Wait for the node's last rank: who hangs in its shutdown is watched, too."""
    for pid in directory.peers():
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        except (AttributeError, OSError):  # Linux before 5.3
            while processes.is_alive(pid):
                loop.pause(_POLL_S)
            continue
        _wait_until_readable(fd, loop)
        os.close(fd)


def _wait_until_readable(fd: int, loop: Loop) -> None:
    seen: list[int] = []
    loop.watch(fd, lambda: seen.append(fd))
    loop.run(lambda: seen)
    loop.forget(fd)
