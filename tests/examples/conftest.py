"""Runs a folder of examples/ as a newcomer would: a copy of it, and the commands of its README.

An example's program prints, from rank 0, and at the latest every ten steps the first of them:

    saved step N            a checkpoint of that step is complete
    resumed at step N       it goes on from one
    finished at step N      all of `--steps N` are done
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from tests.conftest import Cluster
from tests.environment import UNREACHABLE, python_with
from tests.jobs.conftest import ROOT, Job, Scripts, job, job_on, scripts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["job", "job_on", "scripts"]  # what the fixtures here are made of

EXAMPLES = ROOT / "examples"
PRELAUNCH = ROOT / "jobs" / "prelaunch.sh"
FOR_EVER, FEW = 1_000_000, 12
"""Steps: more than are done before the kill; and what is left to do after it, beyond a save that
the kill came upon. A save may take longer than the steps: Megatron's starts processes."""
STARTED_OTHERWISE = {"mpi", "ray"}
"""Another program starts their ranks: test_mpi.py, test_ray.py."""
FOLDERS = sorted(
    {path.parent.name for path in EXAMPLES.glob("*/requirements.txt")} - STARTED_OTHERWISE
)
TOGETHER = ("accelerate", "deepspeed")
"""In one environment, which keeps DeepSpeed's compiled C++: it takes a minute of a core or more."""
ON_CPUS = f"python {ROOT / 'tests' / 'examples' / 'megatron_on_cpus.py'} --steps 200"
"""Megatron's example with what it does on a GPU alone."""
LAYOUTS = {
    "in place": (),
    "tasks": ("--nodes=2", "--ntasks-per-node=2"),
    "two tasks": ("--nodes=2", "--ntasks-per-node=1"),
    "a task a node": ("--nodes=2", "--ntasks-per-node=1"),
}


def laptop_lines(folder: str) -> list[str]:
    """What stands behind `DDP_NPROC_PER_NODE=2 … prelaunch.sh -- ` on the example's page."""
    text = (EXAMPLES / folder / "README.md").read_text().replace("\\\n", " ")
    found = re.findall(r"^ +DDP_NPROC_PER_NODE=2 .*prelaunch\.sh -- (.*)", text, flags=re.MULTILINE)
    assert found, f"{folder}/README.md has no line for a laptop"
    return [" ".join(line.split("  #")[0].split()) for line in found]


class Run(Protocol):
    """What a test asks of a job, wherever it runs."""

    run_dir: Path

    def events(self, name: str | None = None) -> list[dict[str, Any]]: ...
    def wait_for_word(self, word: str, count: int = 1, timeout_s: float = 60) -> None: ...
    def pid(self, rank: int) -> int: ...
    def end(self, timeout_s: float = 120) -> object: ...
    def all_gone(self, timeout_s: float = 15) -> bool: ...
    @property
    def log(self) -> str: ...


class InPlace(Job):
    """A job without Slurm, which a test looks at as at any other."""

    def __init__(self, scripts: Scripts, *command: str, **env: str) -> None:
        self.cluster = Cluster  # only for its `until`
        self.directory = scripts.directory
        self.run_dir = scripts.directory / "out" / env["DDP_RUN_NAME"]
        self._path = scripts.directory / "job.log"
        with self._path.open("w") as file:
            self.process = subprocess.Popen(
                [PRELAUNCH, *command],
                cwd=self.directory,
                env=scripts.env | env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def end(self, timeout_s: float = 120) -> tuple[str, int, int]:
        """Waits for the end; gives it as Slurm would."""
        self.cluster.until(lambda: self.process.poll() is not None, timeout_s, "the job ends")
        code = self.process.returncode
        return ("FAILED" if code else "COMPLETED", code, 0)

    @property
    def log(self) -> str:
        """What the job has printed."""
        return self._path.read_text()


class Example:
    """A copy of an example's folder, whose program is about to run."""

    def __init__(self, folder: str, directory: Path, start: Callable[..., Run]) -> None:
        shutil.copytree(EXAMPLES / folder, directory, dirs_exist_ok=True)
        self._directory = directory
        self._folder = folder
        self._start = start
        self.run: Run

    @property
    def python(self) -> Path:
        """The Python with the example's packages."""
        folders = TOGETHER if self._folder in TOGETHER else (self._folder,)
        try:
            return python_with(
                *(next((EXAMPLES / folder).glob("requirements*.txt")) for folder in folders)
            )
        except ValueError as error:
            if UNREACHABLE in str(error):
                pytest.skip(str(error))
            raise

    def start(self, command: str, steps: int = FOR_EVER, **env: str) -> Run:
        """Starts a command of its page; `leave` says how long the next start of it goes on."""
        in_steps, number = re.subn(r"([-.]steps) \d+", r"\1 $(cat steps)", command)
        assert number == 1, f"no --steps in {command}"
        self.leave(steps)
        env = {
            "PATH": f"{self.python.parent}:{os.environ['PATH']}",
            "HF_HUB_OFFLINE": "1",  # nothing may be downloaded
            "TORCH_EXTENSIONS_DIR": str(self.python.parents[1] / "compiled"),
            "DDP_RUN_NAME": "example",
            "DDP_MAX_RESTARTS": "1",
        } | env
        self.run = self._start("--", "bash", "-c", f"exec {in_steps}", **env)
        return self.run

    def leave(self, steps: int) -> None:
        """Say how many steps the next start of the program does."""
        (self._directory / "steps").write_text(f"{steps}\n")

    def text(self, attempt: int) -> str:
        """What rank 0 has printed in an attempt."""
        begins = [e["log_offset"] for e in self.run.events("rank_up") if e["rank"] == 0]
        path = self.run.run_dir / "logs" / "rank-0.log"
        text = path.read_bytes()[begins[attempt - 1] :] if len(begins) >= attempt else b""
        if len(begins) > attempt:
            text = text[: begins[attempt] - begins[attempt - 1]]
        return text.decode()

    def last(self, word: str, attempt: int) -> int:
        """Give N of the last `WORD step N` of an attempt."""
        found = re.findall(rf"{word} step (\d+)\b", self.text(attempt))
        assert found, f"no {word!r} in attempt {attempt}: {self.text(attempt)}"
        return int(found[-1])

    def kill_last_rank(self) -> int:
        """`kill -9` the last rank once there is a checkpoint, and leave a few steps to do."""
        self.run.wait_for_word("saved step ", timeout_s=180)
        rank = max(event["rank"] for event in self.run.events("rank_up"))
        self.kill(self.run.pid(rank))
        return rank

    def kill(self, pid: int) -> None:
        """`kill -9` a process of the program once there is a checkpoint."""
        self.run.wait_for_word("saved step ", timeout_s=180)
        os.kill(pid, signal.SIGSTOP)  # now all ranks soon wait, and what is saved is known
        saved, before = self.last("saved", 1), -1
        while saved != before:  # what they printed may still be on its way
            time.sleep(0.5)
            saved, before = self.last("saved", 1), saved
        self.leave(saved + FEW)
        os.kill(pid, signal.SIGKILL)

    def record(self) -> dict[str, Any]:
        """The run record."""
        return json.loads((self.run.run_dir / "run.json").read_text())

    def goes_on_after_a_kill(self, *, may_be_silent: bool = False) -> None:
        """A killed rank costs a start, and the next one goes on from the program's checkpoint.

        With `may_be_silent` its agent may be killed, too, before it can name it.
        """
        rank = self.kill_last_rank()
        assert self.run.end(timeout_s=240) == ("COMPLETED", 0, 0), self.run.log
        first, second = self.record()["attempts"]
        failed = first["first_failure"]
        if may_be_silent and failed["rank"] is None:
            assert "ranks were killed at once" in self.run.log
        else:
            assert failed["rank"] == rank
        assert failed["signal"] == "KILL"
        assert (second["outcome"], second["code"]) == ("finished", 0)
        resumed = self.last("resumed at", 2)
        assert resumed >= self.last("saved", 1) > 0
        wanted = int((self._directory / "steps").read_text())
        assert self.last("finished at", 2) == wanted > resumed
        assert "resumed" not in self.text(1)
        assert self.run.all_gone()


@pytest.fixture
def example(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Example]]:
    """Gives a folder's example, to be started in one of the LAYOUTS, the fixture's parameter."""
    layout: str = request.param

    def start_in_place(*command: str, **env: str) -> Run:
        runs.append(InPlace(request.getfixturevalue("scripts"), *command, **env))
        return runs[-1]

    def submit(*command: str, **env: str) -> Run:
        own = {"DDP_NPROC_PER_NODE": "2"} if layout == "a task a node" else {}
        return request.getfixturevalue("job")(*LAYOUTS[layout], PRELAUNCH, *command, **own | env)

    runs: list[InPlace] = []
    start = start_in_place if layout == "in place" else submit
    yield lambda folder: Example(folder, tmp_path, start)
    for run in runs:
        run.process.terminate()
        run.process.wait()
        print("--- the job's log", *run.log.splitlines()[-60:], sep="\n")
