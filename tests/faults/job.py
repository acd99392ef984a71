"""A job under test: what it wrote, what of it is alive, and when things happened to it."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.growing import JsonLines, json_lines
from tests.jobs.alive import carriers

if TYPE_CHECKING:
    from collections.abc import Callable

    Event = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
PRELAUNCH = ROOT / "jobs" / "prelaunch.sh"
POLL_S = 0.1
PATIENCE_S = 180.0
"""For what takes seconds on a quiet machine, and a minute on one with many other tests."""


ABANDONED = threading.Event()
"""Set when the test run ends early: nothing is waited for any more."""


class TooLateError(AssertionError):
    """Something did not happen in time; says what, and how the job's log ends."""


class FaultJob:
    """One submitted job of the breakable workload, in a directory of its own."""

    def __init__(self, cluster: Any, directory: Path, name: str) -> None:
        self.cluster = cluster
        self.directory = directory
        self.name = name
        self.id = 0
        self.run_dir = directory / "out" / name
        self.helpers: dict[str, Any] = {}
        self._events = JsonLines(self.run_dir / "events.jsonl")

    def submit(
        self, sbatch: tuple[str, ...], options: tuple[str, ...], env: dict[str, str]
    ) -> None:
        """Submit it; `options` are the trainer's."""
        self.directory.mkdir(parents=True, exist_ok=True)
        mine = {
            "DDP_RUN_NAME": self.name,
            "DDP_MONITOR_INTERVAL": "1",
            "DDP_PREFLIGHT": "0",
            "FAULT_DIR": str(self.directory),
            "PYTHONPATH": str(Path(__file__).parent),
            "OMP_NUM_THREADS": "1",
        }
        command = [*sbatch, "--output=job.log", str(PRELAUNCH)]
        command += ["--workload", "fault_workload:Breakable", "--log-every", "1", *options]
        # A user's environment: nothing of this test run, which would only slow the ranks down.
        tests_own = ("DDP_", "COVERAGE_", "COV_", "PYTEST_")
        kept = {k: v for k, v in self.cluster.env.items() if not k.startswith(tests_own)}
        done = subprocess.run(
            ["sbatch", "--parsable", *command],
            cwd=self.directory,
            env=kept | mine | env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr
        self.id = int(done.stdout)

    # ---- what it wrote ---------------------------------------------------------------------------

    def events(self, *names: str, attempt: int | None = None, since: float = 0.0) -> list[Event]:
        """Events so far of these names (all if none), of an attempt, after a moment; in order."""
        return [
            event
            for event in self._events()
            if (not names or event["event"] in names)
            and (attempt is None or event["attempt"] == attempt)
            and when(event) >= since
        ]

    @property
    def attempt(self) -> int:
        """The number of the newest attempt; 0 before the first."""
        return max((event["attempt"] for event in self.events("start")), default=0)

    def steps(self, attempt: int) -> list[tuple[int, float]]:
        """Steps in metrics.jsonl of an attempt, each with the moment it was written."""
        lines = self.metrics()
        return [(one["step"], when(one)) for one in lines if one.get("attempt") == attempt]

    def metrics(self) -> list[Event]:
        """All lines of metrics.jsonl so far."""
        return json_lines(self.run_dir / "metrics.jsonl")

    @property
    def log(self) -> str:
        """The job's own log."""
        path = self.directory / "job.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def words(self) -> list[str]:
        """The messages of prelaunch.sh to people, without what it quotes from others."""
        lines = self.log.splitlines()
        return [
            line.removeprefix("prelaunch: ") for line in lines if line.startswith("prelaunch: ")
        ]

    def story(self) -> str:
        """What happened to it, for whoever reads that a test failed."""
        many = ("checkpoint", "memory", "settings")
        told = [json.dumps(event)[:400] for event in self.events() if event["event"] not in many]
        return "\n".join([*told[-40:], *self.words()[-20:], *self.log.splitlines()[-10:]])

    def record(self) -> Event:
        """The run record, composed anew: the script may have died before it could."""
        self._monitor("compose")
        found: Event = json.loads((self.run_dir / "run.json").read_text())
        return found

    def why(self) -> str:
        """The first line of `python -m monitor why`, and what it says is to be done next."""
        first, *rest = self._monitor("why").splitlines()
        begin = next(i for i, line in enumerate(rest) if line.startswith("next "))
        following = " ".join(" ".join(rest[begin:]).split())
        return f"{first}; {following}"

    def _monitor(self, command: str) -> str:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "monitor", command, str(self.run_dir)],
            env=self.cluster.env | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def attempt_record(self, attempt: int) -> Event:
        """What the run record holds of an attempt."""
        several = self.record()["attempts"]
        found: Event = next(one for one in several if one["attempt"] == attempt)
        return found

    @staticmethod
    def moment(event: Event) -> float:
        """Give an event's time, in seconds since the epoch."""
        return when(event)

    # ---- waiting ---------------------------------------------------------------------------------

    def until(
        self,
        condition: Callable[[], Any],
        what: str,
        timeout_s: float = PATIENCE_S,
        poll_s: float = POLL_S,
    ) -> Any:
        """Poll until the condition holds; give what it gave. Raises TooLateError."""
        deadline = time.monotonic() + timeout_s
        while not (found := condition()):
            if ABANDONED.is_set() or time.monotonic() > deadline:
                raise TooLateError(f"{self.name}: not within {timeout_s} s: {what}\n{self.story()}")
            time.sleep(poll_s)
        return found

    def until_event(
        self,
        *names: str,
        attempt: int | None = None,
        since: float = 0.0,
        timeout_s: float = PATIENCE_S,
        matches: Callable[[Event], bool] = lambda _: True,
    ) -> Event:
        """Wait for the first event of one of these names."""

        def first() -> Event | None:
            found = self.events(*names, attempt=attempt, since=since)
            return next(filter(matches, found), None)

        event: Event = self.until(first, f"one of {names} in attempt {attempt}", timeout_s)
        return event

    def until_ended(self, timeout_s: float = PATIENCE_S) -> tuple[str, int, int]:
        """Wait until Slurm has ended the job everywhere; state, exit code and signal."""
        self.cluster.wait(self.id, timeout_s)
        listed = ["squeue", "--noheader", f"--jobs={self.id}"]
        self.until(lambda: not self.cluster.run(listed).stdout, "the nodes are clean", timeout_s)
        state, code, signal = self.cluster.wait(self.id, timeout_s)
        return state, code, signal

    # ---- what is alive ---------------------------------------------------------------------------

    def rank_pid(self, rank: int) -> int:
        """The process of a rank in the newest attempt."""
        ups = self.events("rank_up", attempt=self.attempt)
        return next(int(event["pid"]) for event in ups if event["rank"] == rank)

    def node_of(self, rank: int) -> str:
        """The node of a rank in the newest attempt."""
        ups = self.events("rank_up", attempt=self.attempt)
        return next(str(event["node"]) for event in ups if event["rank"] == rank)

    def rank_processes(self, attempt: int) -> list[int]:
        """Processes of an attempt's ranks and whatever they started, on any node."""
        return carriers(f"DDP_RANK_ID={self.launch_id(attempt)}/")

    def launch_id(self, attempt: int) -> str:
        """What every process of an attempt carries."""
        (*_, event) = self.events("settings", attempt=attempt)
        return str(event["settings"]["DDP_LAUNCH_ID"]["value"])

    def processes(self) -> list[int]:
        """All processes of the job on any node, Slurm's own aside."""
        return carriers(str(self.directory))

    def script_pid(self) -> int:
        """The batch script: slurm_script, not one of its subshells."""
        mine = [pid for pid in self.processes() if b"slurm_script" in command_of(pid)]
        (script,) = (pid for pid in mine if parent(pid) not in mine)
        return script


def when(event: Event) -> float:
    """Give an event's or a metric's time, in seconds since the epoch."""
    return dt.datetime.fromisoformat(event["time"]).timestamp()


def parent(pid: int) -> int:
    """Give a process's parent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def command_of(pid: int) -> bytes:
    """Give a process's command line; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
