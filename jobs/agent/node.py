"""One task on a node: torchrun starts a launcher per rank, and they do the rest."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from jobs import programs
from jobs.agent.child import Streams
from jobs.agent.task import Task
from jobs.messages import UsageError, write
from rundir import events
from rundir.paths import RunDir

if TYPE_CHECKING:
    from jobs.agent.contract import Contract
    from jobs.loop import Loop

_NUM_LINES = 20
_TAIL_BYTES = 1 << 16


def run_node(words: list[str], contract: Contract, root: str, loop: Loop) -> int:
    """Run this node's ranks to their end; return torchrun's code."""
    environ = contract.environ
    node = environ["DDP_NODE"]
    python = programs.find_python(root, environ)
    if not python:
        raise UsageError(
            "DDP_NPROC_PER_NODE needs Python with torch for torchrun",
            f"no python3 on {node}",
            "set DDP_PYTHON, or use --ntasks-per-node",
        )
    for name in ("SLURM_PROCID", "SLURM_LOCALID"):  # this task's, and no rank's
        environ.pop(name, None)
    files = RunDir(environ["DDP_RUN_DIR"])
    task = Task(environ, f"node{environ['NODE_RANK']}", files.torchrun_log(node), loop)
    launcher = os.path.join(root, "jobs", "launcher.sh")
    # torchrun would drop a -- that comes right after the program.
    argv = [*_torchrun(python, contract), "env", launcher, *words]
    # What its launchers say goes on to the job's log; torchrun's own words do not. Signals reach
    # the ranks through their launchers, SIGUSR1 by them alone: torchrun would end of it.
    task.start(argv, Streams(1, task.log_fd), signal.SIGTERM, ignored=(signal.SIGUSR1,))
    code = task.wait()
    task.sweep()
    # torchrun's own log is long, and only of interest where no rank of this node came up.
    if code and not _has_rank_up(files, int(environ["DDP_ATTEMPT"]), node):
        write(2, _tail(task.log))
    return code


def _torchrun(python: str, contract: Contract) -> list[str]:
    environ = contract.environ
    return [
        *(python, "-m", "torch.distributed.run"),
        f"--nnodes={contract.num_nodes}",
        f"--node-rank={environ['NODE_RANK']}",
        f"--nproc-per-node={environ['DDP_NPROC_PER_NODE']}",
        f"--master-addr={environ.get('MASTER_ADDR', '')}",
        f"--master-port={environ.get('MASTER_PORT', '')}",
        "--max-restarts=0",
        "--no-python",
    ]


def _has_rank_up(files: RunDir, attempt: int, node: str) -> bool:
    try:
        with open(files.events, "rb") as file:
            found = [events.parse(line) or {} for line in file if b'"rank_up"' in line]
    except OSError:
        return False
    return any(event.get("attempt") == attempt and event.get("node") == node for event in found)


def _tail(path: str) -> str:
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - _TAIL_BYTES))
        lines = file.read().splitlines(keepends=True)
    return os.fsdecode(b"".join(lines[-_NUM_LINES:]))
