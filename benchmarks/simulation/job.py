"""One simulated job: the real supervisor among fakes of Slurm's programs, through a whole life.

The supervisor is started as a job's script, with srun for a backend. The fakes write down how they
are called, and the tasks of `srun` are agents that speak the real protocol (`srun.py`).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.simulation.meter import Meter, Phase
from rundir.paths import RunDir, gutil_path

if TYPE_CHECKING:
    from collections.abc import Callable

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
_JOB = "4242"
_LIMIT_S = 240.0
_POLL_S = 0.02
_GUARD_S, _NODES_PER_S = 2, 16
"""What a round of the supervisor's guard takes: so many seconds, and one for so many nodes."""
_COUNTED = 'echo "${0##*/} $*" >>"$SIMULATION_NOTES/requests"\n'
_PROGRAMS = {
    "scontrol": _COUNTED
    + """
case "$*" in
    *"show hostnames"*) cat "$SIMULATION_NOTES/nodes" ;;
    *"show job"*) echo "JobId=$SLURM_JOB_ID JobState=RUNNING Restarts=$SLURM_RESTART_COUNT" ;;
    *"show node"*)
        for node in ${!#//,/ }; do
            echo "NodeName=$node NodeAddr=127.0.0.1 Port=$SIMULATION_PORT State=ALLOCATED"
        done
        ;;
esac""",
    "srun": _COUNTED + 'exec "$SIMULATION_PYTHON" -I -S "$SIMULATION_SRUN"',
    "squeue": _COUNTED,
    "scancel": _COUNTED,
    "sbatch": _COUNTED,
    "getent": 'echo "10.1.2.3 STREAM $2"',
    # What becomes the supervisor, which takes no modules from outside: with a first line more.
    "python": """
for ((i = 1; i < $#; i++)); do
    if [[ ${!i} == -c && ${*:i+1:1} == *supervisor* ]]; then
        set -- "${@:1:i}" "$(cat "$SIMULATION_COUNTED")"$'\\n'"${*:i+1:1}" "${@:i+2}"
        break
    fi
done
exec "$SIMULATION_PYTHON" "$@" """,
}


class Simulated(NamedTuple):
    """A simulated job."""

    phases: dict[str, Phase]
    codes: list[int]
    """Of its script, before the requeue and after."""
    words: str
    """What it reported to people."""
    output: str
    """What its ranks logged."""
    events: list[dict[str, Any]]
    links: list[int]
    """Of the first preflight: its rounds, pairs, and calls of rank 0's store."""

    @property
    def bad_nodes(self) -> list[str]:
        """Those that it named."""
        checked = (event for event in self.events if event["event"] == "preflight")
        return [e["node"] for e in checked if e["is_bad"] and e["attempt"] == 1]


class _Job:
    """A job and the fakes around it."""

    def __init__(self, directory: Path, num_nodes: int, num_local: int, port: int) -> None:
        self.num_ranks = num_nodes * num_local
        self.notes, self._out = directory / "notes", directory / "out"
        self.nodes = [f"sim{node:04}" for node in range(num_nodes)]
        self._environ = self._prepare(directory, port)
        self._events = Path(RunDir(str(self._out / f"slurm-{_JOB}")).events)
        self.meter = Meter(self.notes, self._events)
        self._words, self._output = directory / "words", directory / "output"
        self._script: subprocess.Popen[bytes] | None = None
        self._codes: list[int] = []

    def _prepare(self, directory: Path, port: int) -> dict[str, str]:
        """Write the fakes; the environment of the job's script."""
        programs, modules = directory / "bin", directory / "modules"
        for folder in (self.notes, programs, modules, self._out):
            folder.mkdir()
        for name, body in _PROGRAMS.items():
            (programs / name).write_text(f"#!/bin/bash\n{body}\n")
            (programs / name).chmod(0o755)
        counted = _HERE / "counted.py"
        (modules / "sitecustomize.py").write_text(counted.read_text())
        (self.notes / "nodes").write_text("\n".join(self.nodes) + "\n")
        ours = {
            "NOTES": self.notes,
            "SHARED": self._out,
            "PYTHON": sys.executable,
            "COUNTED": counted,
            "SRUN": _HERE / "srun.py",
            "PORT": port,
        }
        return {
            **{f"SIMULATION_{name}": str(value) for name, value in ours.items()},
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HOME": str(directory),
            "PYTHONPATH": str(modules),
            "DDP_PYTHON": str(programs / "python"),
            "DDP_OUT": str(self._out),
            "DDP_MAX_RESTARTS": "1",
            "DDP_BAD_NODES": "0",  # the planted ones are found, and stay
            "DDP_MONITOR_INTERVAL": "1",
            "SLURM_JOB_ID": _JOB,
            "SLURM_JOB_NUM_NODES": str(len(self.nodes)),
            "SLURM_NTASKS": str(self.num_ranks),
            "SLURM_JOB_NODELIST": "sim",
            "SLURMD_NODENAME": self.nodes[0],
            "SLURM_SUBMIT_DIR": str(directory),
            "ENVIRONMENT": "BATCH",
        }

    def start(self, num_requeues: int) -> None:
        """Start its script, as Slurm would."""
        with self._output.open("ab") as output, self._words.open("ab") as words:
            self._script = subprocess.Popen(
                [_ROOT / "jobs" / "prelaunch.sh", "--", "true"],
                env=self._environ | {"SLURM_RESTART_COUNT": str(num_requeues)},
                cwd=self._out.parent,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=words,
            )
        self.meter.pid = self._script.pid

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so. Raises TimeoutError with what the job reported last."""
        deadline_s = time.monotonic() + _LIMIT_S
        while not condition():
            if time.monotonic() > deadline_s:
                raise TimeoutError(self._words.read_text()[-2000:])
            time.sleep(_POLL_S)

    def wait_until_up(self, attempt: int) -> None:
        """Wait until each rank of an attempt is known to have begun."""
        self.wait_for(lambda: self.meter.count("first_step", attempt) == self.num_ranks)

    def wait_until_checked(self, attempt: int) -> None:
        """Wait until the verdict of each node is written."""
        self.wait_for(lambda: self.meter.count("preflight", attempt) == len(self.nodes))

    def wait_for_line(self, kind: str, word: str) -> None:
        """Wait until the fakes have written down a line with a word."""
        self.wait_for(lambda: any(word in line for line in self.meter.lines(kind)))

    def grow_logs(self, seconds: float) -> None:
        """Write as the nodes' monitors do, for so long."""
        deadline_s = time.monotonic() + seconds
        while time.monotonic() < deadline_s:
            for node in self.nodes:
                with Path(gutil_path(str(self._out), _JOB, node)).open("ab") as file:
                    file.write(b"a row\n")
            time.sleep(0.5)

    def ask_for_checkpoint(self) -> None:
        """Signal the script, as Slurm does before the time limit."""
        assert self._script is not None
        self._script.send_signal(signal.SIGUSR1)

    def wait_until_over(self) -> None:
        """Wait for the script's end."""
        assert self._script is not None
        self._codes.append(self._script.wait(_LIMIT_S))

    def kill(self) -> None:
        """Leave nothing behind."""
        if self._script is not None and self._script.poll() is None:
            self._script.terminate()
            self._script.wait(_LIMIT_S)

    def simulated(self) -> Simulated:
        """Give what is known at the end."""
        words, output = self._words.read_text(), self._output.read_text()
        events = [json.loads(line) for line in self._events.read_text().splitlines()]
        links = [int(number) for number in self.meter.lines("links")[0].split()]
        return Simulated(self.meter.phases, self._codes, words, output, events, links)


def simulate(num_nodes: int, num_local_ranks: int, *, is_idle: bool = True) -> Simulated:
    """Let a job of so many ranks live: a failure, a restart, a requeue, and an end.

    `is_idle`: with a while in which nothing happens, of seconds to minutes.
    """
    with (
        tempfile.TemporaryDirectory() as directory,
        socket.create_server(("127.0.0.1", 0), backlog=2 * num_nodes) as slurmd,
    ):
        job = _Job(Path(directory), num_nodes, num_local_ranks, slurmd.getsockname()[1])
        try:
            _live(job, is_idle=is_idle)
        finally:
            job.kill()
        return job.simulated()


def _live(job: _Job, *, is_idle: bool) -> None:
    phase = job.meter.phase
    with phase("preflight"):
        job.start(num_requeues=0)
        job.wait_until_checked(1)
    with phase("start"):
        job.wait_until_up(1)
    if is_idle:
        with phase("training"):
            job.grow_logs(_GUARD_S + len(job.nodes) / _NODES_PER_S + 1)
        with phase("all nodes quiet"):
            job.wait_for_line("requests", "show node")
            time.sleep(1)
    with phase("failure"):
        (job.notes / "fail").touch()
        job.wait_for_line("used", " compose ")
    with phase("restart"):
        job.wait_until_up(2)
    with phase("requeue"):
        job.ask_for_checkpoint()
        job.wait_until_over()
    with phase("preflight again"):
        job.start(num_requeues=1)
        job.wait_until_checked(3)
    with phase("start again"):
        job.wait_until_up(3)
    with phase("end"):
        (job.notes / "finish").touch()
        job.wait_until_over()
