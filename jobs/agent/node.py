"""One task on a node: torchrun starts a launcher per rank, and they do the rest."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from typing import TYPE_CHECKING

from jobs import processes, programs
from jobs.agent.child import Streams
from jobs.agent.task import Task
from jobs.messages import UsageError, write
from rundir import events, plain, procfs
from rundir.hang import ASK
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
    name, log = f"node{environ['NODE_RANK']}", files.torchrun_log(node)
    task = Task(environ, name, log, loop, adopts_orphans=True)
    task.on_ask = lambda: _ask(task)
    launcher = os.path.join(root, "jobs", "launcher.sh")
    # Given, because torchrun would leave its own behind at each start.
    scratch = tempfile.mkdtemp(prefix="torchelastic_")
    # By `env`, because torchrun drops a `--` that comes right after the program.
    argv = [*_torchrun(python, contract), f"--log-dir={scratch}", "env", launcher, *words]
    # Only the launchers' output reaches the job's log, not torchrun's. The launchers also hand the
    # signals to the ranks; torchrun ignores SIGUSR1, which would end it.
    task.start(argv, Streams(1, task.log_fd), signal.SIGTERM, ignored=(signal.SIGUSR1,))
    code = task.wait()
    task.sweep()
    shutil.rmtree(scratch, ignore_errors=True)
    # torchrun's own log is long, and only of interest where no rank of this node came up.
    up = events.read_attempt(files.events, "rank_up", int(environ["DDP_ATTEMPT"]))
    if code and not any(event.get("node") == node for event in up):
        lines = plain.tail(task.log, _TAIL_BYTES).splitlines(keepends=True)
        write(2, "".join(lines[-_NUM_LINES:]))
    return code


def _ask(task: Task) -> None:
    """Hand on to the launchers, and so to the monitor, what Slurm gives to its own task alone."""
    those = [pid for pid in task.descendants() if procfs.catches(pid, ASK)]
    processes.send(those, ASK)


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
