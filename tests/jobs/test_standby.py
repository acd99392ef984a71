"""Ranks that wait for a restart: they are what goes on, and none is ever left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace as Named
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from jobs.backends.base import Layout, Step
from jobs.loop import Loop, Timer
from jobs.messages import UsageError
from jobs.supervisor.running import Ran, Ranks
from jobs.supervisor.settings import Settings
from jobs.supervisor.standby import Standby
from rundir import procfs
from tests.conftest import Cluster
from tests.faults.job import parent
from tests.growing import json_lines
from tests.jobs import standbys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Scripts

pytestmark = pytest.mark.slow

FAULTS = Path(__file__).resolve().parents[1] / "faults"
# Its steps take 20 ms asleep: those that wait import torch meanwhile.
LONG = ("--workload", "fault_workload:Breakable", "--global-batch-size", "8", "--epochs", "1000")


class Training:
    """Two ranks in place that train for hours."""

    def __init__(self, scripts: Scripts, patience: Callable[[float], float], **env: str) -> None:
        self.scripts, self._patience = scripts, patience
        options = (*LONG, "--checkpoint-every", "20", "--log-every", "10")
        env = {"OMP_NUM_THREADS": "1", "DDP_RUN_NAME": "run", "DDP_WARM": "1", **env}
        env |= {"PYTHONPATH": str(FAULTS), "FAULT_DIR": str(scripts.directory)}
        self.process: subprocess.Popen[str] = scripts.start("prelaunch.sh", *options, **env)

    def events(self, name: str) -> list[dict[str, Any]]:
        """The events of one name so far."""
        events = json_lines(self.scripts.directory / "out" / "run" / "events.jsonl")
        return [event for event in events if event["event"] == name]

    def until(self, holds: Callable[[], Any], limit_s: float = 60) -> Any:
        """Wait until something holds, and give it."""
        deadline_s = time.monotonic() + self._patience(limit_s)
        while not (found := holds()):
            assert time.monotonic() < deadline_s
            assert self.process.poll() is None
            time.sleep(0.02)
        return found

    def waiting(self) -> set[int]:
        """Wait until both ranks of the next attempt have imported torch; their processes."""

        def ready() -> set[int]:
            ranks = {event["pid"] for event in self.events("rank_up")}
            found = standbys.waiting(self.scripts.directory, ranks)
            return found if len(found) == 2 else set()

        return self.until(ready)

    def kill_rank(self, rank: int, attempt: int) -> None:
        """Kill a rank of an attempt once it has a checkpoint."""
        self.until(lambda: len(self.events("checkpoint")) >= attempt)
        (up,) = [e for e in self.events("rank_up") if (e["rank"], e["attempt"]) == (rank, attempt)]
        os.kill(up["pid"], signal.SIGKILL)

    def pids(self, attempt: int) -> set[int]:
        """Wait for the first step of an attempt; its ranks' processes."""
        self.until(lambda: attempt in {event["attempt"] for event in self.events("first_step")})
        return {event["pid"] for event in self.events("rank_up") if event["attempt"] == attempt}

    def end(self, number: int = signal.SIGTERM) -> None:
        """End the job, and see that nothing of it is left."""
        self.process.send_signal(number)
        self.scripts.finish(self.process)
        deadline_s = time.monotonic() + self._patience(20)
        while standbys.processes(self.scripts.directory):
            assert time.monotonic() < deadline_s, standbys.processes(self.scripts.directory)
            time.sleep(0.05)


@pytest.fixture
def training(
    scripts: Scripts, patience: Callable[[float], float]
) -> Iterator[Callable[..., Training]]:
    """Start trainings; end what still runs."""
    started: list[Training] = []

    def start(**env: str) -> Training:
        started.append(Training(scripts, patience, **env))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()


def has_nothing_open(pid: int, directory: Path) -> bool:
    """Whether a process that waits costs memory alone: no GPU, no port, no file of the run."""
    targets = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
    has_one_socket = sum(target.startswith("socket:") for target in targets) == 1
    has_a_file = any(str(directory) in target for target in targets)
    return has_one_socket and not has_a_file and "/dev/nvidia" not in standbys.maps(pid)


def test_those_who_wait_are_the_next_ranks(training: Callable[..., Training]) -> None:
    """Twice: the ranks of the next attempt are the processes that waited; then others wait.

    They have nothing open, and end with a killed job; the other tests here end it by SIGTERM.
    """
    run = training()
    for attempt in (1, 2):
        waiting = run.waiting()
        assert all(has_nothing_open(pid, run.scripts.directory) for pid in waiting)
        run.kill_rank(attempt % 2, attempt)
        assert run.pids(attempt + 1) == waiting
    assert run.events("resume")[-1]["step"] > 0
    failures = [(event["rank"], event["signal"]) for event in run.events("first_failure")]
    assert failures == [(1, "KILL"), (0, "KILL")]
    run.waiting()
    run.end(signal.SIGKILL)


def test_a_waiting_rank_that_is_gone_is_started_anew(training: Callable[..., Training]) -> None:
    """Whatever became of it, the run goes on."""
    run = training()
    first, second = sorted(run.waiting())
    os.kill(first, signal.SIGKILL)
    run.kill_rank(0, 1)
    assert len(run.pids(2) & {first, second}) <= 1
    run.end()


def test_the_end_of_those_that_do_not_fit_is_not_waited_for(
    training: Callable[..., Training],
) -> None:
    """As where their node is lost: the next ranks are up while they are still being ended."""
    run = training()
    first, second = (parent(pid) for pid in sorted(run.waiting()))
    os.kill(first, signal.SIGKILL)
    os.kill(second, signal.SIGSTOP)  # it does not end by itself
    run.kill_rank(0, 1)
    run.until(lambda: any(event["attempt"] == 2 for event in run.events("rank_up")))
    assert procfs.is_alive(second)
    run.until(lambda: not procfs.is_alive(second))
    run.pids(2)
    run.end()


@pytest.mark.parametrize("is_lost", [False, True])
def test_those_whose_containers_still_start_end_by_themselves(
    tmp_path: Path, *, is_lost: bool
) -> None:
    """An srun that is ended writes `forcing job termination`; for a lost node it would wait."""
    log = tmp_path / "log"
    script = f"trap 'echo forced >>{log}; exit' TERM; echo up >{log}; sleep 1.5 & wait"

    started: list[subprocess.Popen[bytes]] = []

    def start(step: Step, stdout: int) -> list[subprocess.Popen[bytes]]:
        words = ["bash", "-c", script]
        started.append(subprocess.Popen(words, stdin=step.stdin, stdout=stdout))
        return started

    step = Step([], {}, Layout(1, 1, 1, 1), ["n"], "out", is_restart=True, is_standby=True)
    backend: Any = Named(start=start)
    loop = Loop()
    one = Standby(loop, backend, step)
    Cluster.until(lambda: log.exists() and log.read_text(), 10, "it is up")
    before = signal.getsignal(signal.SIGCHLD)
    loop.catch([signal.SIGCHLD], lambda _number: None)
    one.end(is_lost=is_lost)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, before)
    assert started[0].wait() == 0
    assert ("forced" in log.read_text()) is is_lost


def test_none_wait_where_none_is_wanted(training: Callable[..., Training]) -> None:
    """DDP_WARM=0: after seconds of training there is none."""
    run = training(DDP_WARM="0")
    run.until(lambda: len(run.events("checkpoint")) >= 3)
    time.sleep(2.5)  # two looks of the supervisor's
    assert standbys.processes(run.scripts.directory, standbys.MODULE) == set()
    run.end()


def looks(
    start: Callable[..., Any], *, warm: str = "1", has_standby: bool = True, **of: Any
) -> Ranks:
    """Let the supervisor look once at ranks that train; `of` is of the job."""
    environ = {"DDP_WARM": warm, "DDP_ATTEMPT": "1"}
    settings = Settings(environ)
    settings.values.update(environ)
    job = Named(**{"id": "1", "is_own_command": False, "max_restarts": 3, **of})
    backend = Named(start=start, has_standby=has_standby)
    plan = Named(backend=backend, job=job, here=Named(environ={}))
    step = Step([], environ, Layout(1, 1, 1, 1), ["n"], "out", is_restart=False)
    now: Any = Named(plan=plan, settings=settings, loop=None, step=step)
    now.journal, now.counters = Named(reports=Named(has_trained=True)), Named(restarts=0)
    ranks = Ranks(now)
    ranks._prepare_standby(Timer(0, start))  # noqa: SLF001 -- else it takes a training
    return ranks


@pytest.mark.parametrize(
    "why", [{"warm": "0"}, {"max_restarts": 0}, {"is_own_command": True}, {"has_standby": False}]
)
def test_none_is_started_where_none_could_be_used(why: dict[str, Any]) -> None:
    """Where one could be, it is started."""
    start = Mock(side_effect=BlockingIOError)
    looks(start, **why)
    start.assert_not_called()
    looks(start)
    start.assert_called_once()


def test_a_run_goes_on_where_none_can_be_started() -> None:
    """Ranks may have used up the processes that their user may start."""
    looks(Mock(side_effect=BlockingIOError)).end_standby()


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (BlockingIOError(11, "Try again"), 70, "found [Errno 11] Try again; raise the limit"),
        (UsageError("DDP_MOUNTS must name what is there", "no 'x'", "correct it"), 64, "no 'x'"),
    ],
)
def test_ranks_that_cannot_start(
    error: Exception, code: int, line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The attempt ends with a line, as any other does; what follows is decided as ever."""
    plan = Named(backend=Mock(), is_elastic=False)
    plan.backend.start.side_effect = error
    step = Step([], {}, Layout(1, 1, 1, 1), ["n"], "out", is_restart=True)
    now: Any = Named(plan=plan, settings=Settings({}))
    now.loop, now.journal, now.output, now.step, now.num_restarts = Mock(), Mock(), None, step, 1
    now.requests = Named(stop_signal=None)
    now.settings.values["DDP_GRACE"] = "1"
    assert Ranks(now).run() == Ran(code)
    assert line in capfd.readouterr().err.splitlines()[0]
