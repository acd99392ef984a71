"""Runs the batch script as a user would, and fakes the Slurm client at the door."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import on_busy_machine
from tests.growing import json_lines
from tests.jobs.alive import carriers, gone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
KEPT = ("PATH", "LANG")
COLD = {"DDP_WARM": "0"}
"""Processes that wait for a restart would take the cores from other tests; a few ask for them."""
MPI_TYPES = """\
MPI plugin types are...
	none
	pmi2
	pmix
specific pmix plugin versions available: pmix_v4"""


@dataclasses.dataclass(frozen=True)
class Result:
    """What a finished script left behind."""

    code: int
    out: str
    err: str
    directory: Path

    @property
    def run_dir(self) -> Path:
        """The one run directory that was made."""
        (found,) = (path.parent for path in self.directory.glob("**/events.jsonl"))
        return found

    @property
    def events(self) -> list[dict[str, Any]]:
        """All events of the run, in order."""
        lines = (self.run_dir / "events.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def of(self, name: str) -> list[dict[str, Any]]:
        """The events of one name."""
        return [event for event in self.events if event["event"] == name]

    def setting(self, name: str) -> str:
        """A setting's value as --dry-run printed it."""
        (line,) = (text for text in self.err.splitlines() if text.startswith(f"{name} "))
        return line.split()[1]

    @property
    def step(self) -> str:
        """The step's command as printed."""
        (line,) = (text for text in self.err.splitlines() if text.startswith("step: "))
        return line.removeprefix("step: ")


class Scripts:
    """Starts scripts of jobs/ in a directory of their own, with a clean environment."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.root = ROOT
        self.env = {name: os.environ[name] for name in KEPT if name in os.environ}
        self.env |= {"HOME": str(directory), "DDP_MONITOR": "0", "DDP_NPROC_PER_NODE": "2"}
        self.env |= COLD | {"DDP_PREFLIGHT": "0"}

    def start(
        self, script: str, *args: str, cwd: Path | None = None, **env: str
    ) -> subprocess.Popen[str]:
        """Starts a script; signals reach it as they reach one started from a terminal."""
        return subprocess.Popen(
            [ROOT / "jobs" / script, *args],
            cwd=cwd or self.directory,
            env=self.env | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, process: subprocess.Popen[str], timeout: float = 60) -> Result:
        """Waits for the script's end."""
        out, err = process.communicate(timeout=on_busy_machine(timeout))
        return Result(process.returncode, out, err, self.directory)

    def run(self, script: str, *args: str, cwd: Path | None = None, **env: str) -> Result:
        """Runs a script to its end."""
        return self.finish(self.start(script, *args, cwd=cwd, **env))

    def fake(self, name: str, body: str) -> None:
        """Puts a program of this name first on PATH."""
        programs = self.directory / "fake-bin"
        programs.mkdir(exist_ok=True)
        path = programs / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)
        self.env["PATH"] = f"{programs}:{os.environ['PATH']}"

    def fake_slurm(self, *hosts: str, pyxis: bool = True) -> None:
        """A Slurm client whose controller answers: these hosts, and steps that run in place."""
        names = " ".join(hosts)
        self.fake(
            "scontrol",
            f"""case "$*" in
                *"show hostnames"*) printf '%s\\n' {names} ;;
                *"show node"*) echo "NodeName=$4 NodeAddr=10.9.8.7 X=1" ;;
                *"show job"*) echo "JobId=7 Command=/nowhere/prelaunch.sh" ;;
            esac""",
        )
        option = "--container-image=[USER@][REGISTRY#]IMAGE" if pyxis else ""
        self.fake(
            "srun",
            f"""if [[ $1 == --help ]]; then echo "{option}"; exit; fi
            if [[ $1 == --mpi=list ]]; then echo "{MPI_TYPES}"; exit; fi
            echo "$*" >>'{self.directory}/srun.calls'
            while [[ $1 == -* ]]; do shift; done
            export SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_STEP_ID=0
            export SLURM_STEP_NUM_TASKS=$SLURM_NTASKS SLURM_STEP_TASKS_PER_NODE='2(x{len(hosts)})'
            exec "$@" """,
        )
        self.env |= {
            "SLURM_JOB_ID": "4242",
            "SLURM_JOB_NUM_NODES": str(len(hosts)),
            "SLURM_NTASKS": str(2 * len(hosts)),
            "SLURM_JOB_NODELIST": "fake",
            "SLURMD_NODENAME": hosts[0],
            "SLURM_SUBMIT_DIR": str(self.directory),
            "ENVIRONMENT": "BATCH",
        }
        self.env.pop("DDP_NPROC_PER_NODE", None)


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    """The scripts of jobs/, run in a directory of their own."""
    return Scripts(tmp_path)


@pytest.fixture
def anybody() -> Iterator[Scripts]:
    """The same in a directory in which every user can write.

    Not in tmp_path: another pytest that starts shuts strangers out of all of them.
    """
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o777)
        yield Scripts(directory)


class Job:
    """One submitted job, in a directory of its own."""

    def __init__(self, cluster: Any, directory: Path, *args: str, **env: str) -> None:
        self.cluster = cluster
        self.directory = directory
        self.id = cluster.submit(
            list(args), cwd=directory, env={"DDP_MONITOR_INTERVAL": "1"} | COLD | env
        )
        self.run_dir = directory / "out" / env.get("DDP_RUN_NAME", f"slurm-{self.id}")

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """The events so far, or those of one name."""
        events = json_lines(self.run_dir / "events.jsonl")
        return [event for event in events if name in (None, event["event"])]

    def wait_for(self, name: str, count: int = 1, timeout_s: float = 60) -> list[dict[str, Any]]:
        """Waits for so many events of a name."""
        self.cluster.until(
            lambda: len(self.events(name)) >= count, timeout_s, f"{count} x {name} of job {self.id}"
        )
        return self.events(name)

    def wait_for_word(self, word: str, count: int = 1, timeout_s: float = 60) -> None:
        """Waits until so many ranks have said it: one that is up may not have its traps yet."""

        def said() -> int:
            return sum(word in log.read_text() for log in self.run_dir.glob("logs/rank-*.log"))

        self.cluster.until(lambda: said() >= count, timeout_s, f"{word!r} from {count} ranks")

    def cancel(self) -> None:
        """Cancel it, as its user would."""
        self.cluster.run(["scancel", str(self.id)])

    def end(self, timeout_s: float = 120) -> tuple[str, int, int]:
        """Waits for the end; gives Slurm's state, exit code and signal."""
        self.cluster.wait(self.id, timeout_s)
        # A cancelled job has its state at once, and its code when its last process has ended.
        listed = ["squeue", "--noheader", f"--jobs={self.id}"]
        self.cluster.until(lambda: not self.cluster.run(listed).stdout, 60, "the nodes are clean")
        return self.cluster.wait(self.id, timeout_s)

    @property
    def log(self) -> str:
        """The job's own log."""
        path = self.directory / f"slurm-{self.id}.out"
        return path.read_text() if path.exists() else ""

    def left(self) -> list[int]:
        """Processes on any node that carry the run's directory."""
        return carriers(str(self.directory))

    def all_gone(self, timeout_s: float = 15) -> bool:
        """Whether nothing of the job is left on any node in time."""
        return gone(str(self.directory), timeout_s)

    def pid(self, rank: int) -> int:
        """The process of a rank."""
        return next(event["pid"] for event in self.events("rank_up") if event["rank"] == rank)


@pytest.fixture
def slurm(scripts: Scripts) -> Scripts:
    """A job of two nodes with two tasks each; this machine is the first."""
    scripts.fake_slurm(socket.gethostname(), "other")
    scripts.fake("getent", 'echo "10.1.2.3 STREAM $2"')
    return scripts


@pytest.fixture
def job_on(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Submits jobs to a cluster, in a directory of their own; cancels what is left of them.

    What they said is printed at the end: pytest shows it where the test failed.
    """
    jobs: list[Job] = []

    def submit(cluster: Any, *args: str, **env: str) -> Job:
        jobs.append(Job(cluster, tmp_path, *args, **env))
        return jobs[-1]

    yield submit
    for each in jobs:
        shown = each.cluster.run(["scontrol", "show", "job", "--oneliner", str(each.id)])
        print(f"--- what Slurm says of job {each.id}", shown.stdout or shown.stderr, sep="\n")
        each.cluster.run(["scancel", "--quiet", str(each.id)])
        print(f"--- the log of job {each.id}", *each.log.splitlines()[-60:], sep="\n")


@pytest.fixture
def job(cluster: Any, job_on: Callable[..., Job]) -> Callable[..., Job]:
    """Submits jobs to the shared cluster."""
    return functools.partial(job_on, cluster)
