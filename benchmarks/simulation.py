"""A job of thousands of ranks, simulated: what its supervisor costs in each phase of its life.

    python -m benchmarks.simulation [--nodes N] [--ranks N] [--out FILE]

The supervisor is the real one, started as a job's script and with srun for a backend. Slurm's
programs are fakes: they count how often they are called, and the tasks of `srun` are agents that
speak the real protocol without ranks (`simulated_srun`). No Slurm, no torch. See `counted` for files.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks import machine
from benchmarks.report import table
from rundir.paths import RunDir, gutil_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_ROOT = Path(__file__).parent.parent
_HERE = Path(__file__).parent
_NUM_NODES, _NUM_LOCAL_RANKS = 512, 8
_JOB = "4242"
_LIMIT_S = 240.0
_POLL_S = 0.02
_TICKS = os.sysconf("SC_CLK_TCK")
_COUNTED = 'echo "${0##*/} $*" >>"$SIMULATION_NOTES/requests"\n'
_PROGRAMS = {
    "scontrol": _COUNTED
    + """case "$*" in
        *"show hostnames"*) cat "$SIMULATION_NOTES/nodes" ;;
        *"show node"*) for node in ${!#//,/ }; do
            echo "NodeName=$node NodeAddr=127.0.0.1 Port=$SIMULATION_PORT State=ALLOCATED"
        done ;;
        *"show job"*) echo "JobId=$SLURM_JOB_ID JobState=RUNNING Restarts=$SLURM_RESTART_COUNT Requeue=1" ;;
    esac""",
    "srun": _COUNTED + 'exec "$SIMULATION_PYTHON" -I -S "$SIMULATION_SRUN" "$@"',
    "squeue": _COUNTED,
    "scancel": _COUNTED,
    "sbatch": _COUNTED,
    "getent": 'echo "10.1.2.3 STREAM $2"',
    # What the supervisor takes for Python, and its own first lines.
    "python": """for ((i = 1; i < $#; i++)); do
        if [[ ${!i} == -c && ${*:i+1:1} == *supervisor* ]]; then
            set -- "${@:1:i}" "$(cat "$SIMULATION_COUNTED")
${*:i+1:1}" "${@:i+2}"
        fi
    done
    exec "$SIMULATION_PYTHON" "$@" """,
}


class Phase(NamedTuple):
    """What one phase of the job's life cost."""

    name: str
    wall_s: float
    cpu_s: float
    """Of the supervisor's own process."""
    peak_mib: float
    num_messages: int
    """Events that ranks reported."""
    num_files: int
    """Different paths under the output directory that it, or `compose`, named to the system."""
    num_file_calls: int
    requests: Mapping[str, int]
    """Calls of Slurm's programs that ask the controller."""
    compose_cpu_s: float
    compose_mib: float

    @property
    def num_requests(self) -> int:
        """Of all programs."""
        return sum(self.requests.values())


class Simulated(NamedTuple):
    """A simulated job."""

    phases: dict[str, Phase]
    codes: list[int]
    """Of its script, before the requeue and after."""
    words: str
    """What it said to people."""
    output: str
    """What its ranks said."""
    events: list[dict[str, object]]


class _Marks(NamedTuple):
    """How far everything is at one moment."""

    time_s: float
    pid: int
    cpu_s: float
    num_events_bytes: int
    num_files_lines: int
    num_requests: int
    num_used: int


class _Simulation:
    def __init__(self, directory: Path, num_nodes: int, num_local: int, port: int) -> None:
        self.num_ranks = num_nodes * num_local
        self.notes, self._out = directory / "notes", directory / "out"
        self.files = RunDir(str(self._out / f"slurm-{_JOB}"))
        self.nodes = [f"sim{node:04}" for node in range(num_nodes)]
        self.phases: dict[str, Phase] = {}
        self._script: subprocess.Popen[bytes] | None = None
        self._environ = self._prepare(directory, num_local, port)
        self._logs = [directory / "words", directory / "output"]
        self.codes: list[int] = []

    def _prepare(self, directory: Path, num_local: int, port: int) -> dict[str, str]:
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
        for name in ("files", "requests", "used"):
            (self.notes / name).touch()
        return {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HOME": str(directory),
            "PYTHONPATH": str(modules),
            "SIMULATION_NOTES": str(self.notes),
            "SIMULATION_SHARED": str(self._out),
            "SIMULATION_PYTHON": sys.executable,
            "SIMULATION_COUNTED": str(counted),
            "SIMULATION_SRUN": str(_HERE / "simulated_srun.py"),
            "SIMULATION_PORT": str(port),
            "DDP_PYTHON": str(programs / "python"),
            "DDP_OUT": str(self._out),
            "DDP_MAX_RESTARTS": "1",
            "DDP_MONITOR_INTERVAL": "1",
            "SLURM_JOB_ID": _JOB,
            "SLURM_JOB_NUM_NODES": str(len(self.nodes)),
            "SLURM_NTASKS": str(self.num_ranks),
            "SLURM_JOB_NODELIST": "sim",
            "SLURMD_NODENAME": self.nodes[0],
            "SLURM_SUBMIT_DIR": str(directory),
            "ENVIRONMENT": "BATCH",
        }

    # ---- the job

    def start(self, num_requeues: int) -> None:
        """Start its script, as Slurm would."""
        self._environ["SLURM_RESTART_COUNT"] = str(num_requeues)
        words, output = (open(path, "ab") for path in self._logs)
        with words, output:
            self._script = subprocess.Popen(
                [_ROOT / "jobs" / "prelaunch.sh", "--", "true"],
                env=self._environ,
                cwd=self._out.parent,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=words,
            )

    def wait_for(self, condition: Callable[[], bool], limit_s: float = _LIMIT_S) -> None:
        """Wait until something is so. Raises TimeoutError with the job's last words."""
        deadline_s = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > deadline_s:
                raise TimeoutError(self._logs[0].read_text()[-2000:])
            time.sleep(_POLL_S)

    def wait_until_up(self, attempt: int) -> None:
        """Wait until each rank of an attempt is known to have begun."""
        self.wait_for(lambda: self.count("first_step", attempt) == self.num_ranks)

    def count(self, event: str, attempt: int) -> int:
        """Count the events of a name that are written."""
        wanted = f'"event": "{event}", '.encode(), f'"attempt": {attempt}, '.encode()
        try:
            with open(self.files.events, "rb") as file:
                return sum(all(part in line for part in wanted) for line in file)
        except OSError:
            return 0

    def grow_logs(self, seconds: float) -> None:
        """Write as the nodes' monitors do, for so long."""
        deadline_s = time.monotonic() + seconds
        while time.monotonic() < deadline_s:
            for node in self.nodes:
                with open(gutil_path(str(self._out), _JOB, node), "ab") as file:
                    file.write(b"a row\n")
            time.sleep(0.5)

    def num_asked(self, words: str) -> int:
        """Count the requests of a kind so far."""
        return sum(words in line for line in self._lines("requests"))

    def num_composed(self) -> int:
        """Count how often the record was composed."""
        return sum("compose" in line.split() for line in self._lines("used"))

    def send(self, signum: int) -> None:
        """Signal the script."""
        assert self._script is not None
        self._script.send_signal(signum)

    def wait_until_over(self) -> None:
        """Wait for the script's end."""
        assert self._script is not None
        self.codes.append(self._script.wait(_LIMIT_S))

    def kill(self) -> None:
        """Leave nothing behind."""
        if self._script is not None and self._script.poll() is None:
            self._script.terminate()
            self._script.wait(_LIMIT_S)

    def simulated(self) -> Simulated:
        """Give what is known at the end."""
        words, output = (path.read_text() for path in self._logs)
        events = [json.loads(line) for line in Path(self.files.events).read_text().splitlines()]
        return Simulated(self.phases, self.codes, words, output, events)

    # ---- what it costs

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure what happens meanwhile."""
        before = self._marks()
        self._forget_peak()
        yield
        after = self._marks()
        lines = self._lines("files")[before.num_files_lines :]
        asked = self._lines("requests")[before.num_requests :]
        used = [line.split() for line in self._lines("used")[before.num_used :]]
        composed = [words for words in used if words[-2] == "compose"]
        with open(self.files.events, "rb") as file:
            file.seek(before.num_events_bytes)
            reported = [line for line in file if b'"source": "prelaunch"' not in line]
        self.phases[name] = Phase(
            name=name,
            wall_s=after.time_s - before.time_s,
            cpu_s=after.cpu_s - (before.cpu_s if before.pid == after.pid else 0),
            peak_mib=self._peak_mib(),
            num_messages=len(reported),
            num_files=len({line.partition(" ")[2] for line in lines}),
            num_file_calls=len(lines),
            requests=Counter(
                line.split()[0] for line in asked if "show hostnames" not in line
            ),
            compose_cpu_s=sum(float(words[1]) for words in composed),
            compose_mib=max((int(words[2]) / 1024 for words in composed), default=0),
        )

    def _marks(self) -> _Marks:
        try:
            num_bytes = os.stat(self.files.events).st_size
        except OSError:
            num_bytes = 0
        counts = (len(self._lines(name)) for name in ("files", "requests", "used"))
        pid = self._script.pid if self._script else 0
        return _Marks(time.monotonic(), pid, self._cpu_s(), num_bytes, *counts)

    def _lines(self, name: str) -> list[str]:
        return (self.notes / name).read_text().splitlines()

    def _cpu_s(self) -> float:
        """Of the script; what an ended one used until its end."""
        if self._script is None:
            return 0.0
        try:
            stat = Path(f"/proc/{self._script.pid}/stat").read_text().rpartition(") ")[2].split()
            if stat[0] != "Z":
                return (int(stat[11]) + int(stat[12])) / _TICKS
        except OSError:
            pass
        return float(self._last_words()[1])

    def _last_words(self) -> list[str]:
        assert self._script is not None
        pid = str(self._script.pid)
        return next(line.split() for line in self._lines("used") if line.split()[0] == pid)

    def _forget_peak(self) -> None:
        if self._script is not None and self._script.poll() is None:
            Path(f"/proc/{self._script.pid}/clear_refs").write_text("5")

    def _peak_mib(self) -> float:
        assert self._script is not None
        try:
            status = Path(f"/proc/{self._script.pid}/status").read_text().splitlines()
            return next(int(line.split()[1]) for line in status if "VmHWM" in line) / 1024
        except (OSError, StopIteration):
            return int(self._last_words()[2]) / 1024


def simulate(num_nodes: int = _NUM_NODES, num_local_ranks: int = _NUM_LOCAL_RANKS) -> Simulated:
    """Let a job of so many ranks live: a failure, a restart, a requeue, and an end."""
    with (
        tempfile.TemporaryDirectory() as directory,
        socket.create_server(("127.0.0.1", 0), backlog=2 * num_nodes) as slurmd,
    ):
        port = slurmd.getsockname()[1]
        simulation = _Simulation(Path(directory), num_nodes, num_local_ranks, port)
        try:
            _live(simulation)
        finally:
            simulation.kill()
        return simulation.simulated()


def _live(simulation: _Simulation) -> None:
    period_s = 2 + len(simulation.nodes) / 16  # of the guard's round over the nodes
    with simulation.phase("start"):
        simulation.start(num_requeues=0)
        simulation.wait_until_up(1)
    with simulation.phase("training"):
        simulation.grow_logs(period_s + 1)
    with simulation.phase("quiet"):
        simulation.wait_for(lambda: simulation.num_asked("show node") > 0)
        time.sleep(period_s)
    with simulation.phase("failure"):
        (simulation.notes / "fail").touch()
        simulation.wait_for(lambda: simulation.num_composed() == 1)
    with simulation.phase("restart"):
        simulation.wait_until_up(2)
    with simulation.phase("requeue"):
        simulation.send(signal.SIGUSR1)
        simulation.wait_until_over()
    with simulation.phase("start again"):
        simulation.start(num_requeues=1)
        simulation.wait_until_up(3)
    with simulation.phase("end"):
        (simulation.notes / "finish").touch()
        simulation.wait_until_over()


if __name__ == "__main__":
    r = simulate(*map(int, sys.argv[1:]))
    for p in r.phases.values():
        print(p)
    print(r.codes)
    print(r.words[-3000:])
