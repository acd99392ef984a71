"""`python -m monitor record` as the launcher starts it, beside real ranks that really hang."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.growing import json_lines

Until = Callable[..., None]
pytestmark = pytest.mark.slow  # real processes: seconds, not milliseconds

RANKS = Path(__file__).parents[1] / "ranks.py"
NO_COVERAGE = {"COVERAGE_PROCESS_START": "", "COVERAGE_PROCESS_CONFIG": ""}


@dataclass
class Launch:
    """One node of one launch: its directories, its ranks, its recorder."""

    directory: Path
    bench: Any
    token: str
    node: str = "n1"
    started: list["subprocess.Popen[str]"] = field(default_factory=list)

    @property
    def run_dir(self) -> Path:
        """The run directory."""
        return self.directory / "run"

    @property
    def heartbeat_dir(self) -> Path:
        """DDP_BEAT_DIR."""
        return self.directory / f"beats-{self.node}"

    def env(self, **further: str) -> dict[str, str]:
        """What the launcher exports."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("DDP_")}
        return {
            **kept,
            "DDP_LAUNCH_ID": self.token,
            "DDP_NODE": self.node,
            "DDP_BEAT_DIR": str(self.heartbeat_dir),
            "DDP_ATTEMPT": "1",
            **further,
        }

    def begin(self) -> None:
        """Make the directories."""
        for path in (self.run_dir / "debug", self.run_dir / "logs", self.heartbeat_dir):
            path.mkdir(parents=True, exist_ok=True)

    def rank(self, number: int, *command: str, kind: str = "command", **further: str) -> Any:
        """Start the command of a rank, as its launcher does."""
        self.begin()
        carried = {"DDP_RANK_ID": f"{self.token}/{number}", "LOCAL_RANK": str(number)}
        log = (self.run_dir / "logs" / f"rank-{number}.log").open("a")
        process = subprocess.Popen(
            command,
            env=self.env(**carried, **further) | NO_COVERAGE,
            stdout=log,
            text=True,
            start_new_session=True,  # its children end with it
        )
        log.close()
        self.started.append(process)
        (self.heartbeat_dir / f"child-{number}").write_text(f"{process.pid} {number} {kind}\n")
        return process

    def trainer(self, number: int, mode: str) -> Any:
        """Start a rank with heartbeats, which hangs as requested after `hang`."""
        command = [str(RANKS), mode, str(self.heartbeat_dir), str(number), str(self.run_dir)]
        process = self.rank(number, sys.executable, *command, kind="trainer")
        log = self.run_dir / "logs" / f"rank-{number}.log"
        deadline = time.monotonic() + 20
        while "ready" not in log.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return process

    def watch(self, timeout: str = "2", *options: object, **further: str) -> Any:
        """Start the recorder."""
        self.begin()
        env = self.env(DDP_HANG_TIMEOUT=timeout, **further)
        return self.bench.start(
            "--interval", 1, "--compose", self.run_dir, "--launch-id", self.token, *options, env=env
        )

    def hang(self, recording: Any, until: Until) -> None:
        """Let the ranks hang, once the watchdog has seen them work."""
        until(recording.rows)
        time.sleep(1.5)
        (self.heartbeat_dir / "hang").touch()

    def events(self, name: str) -> list[dict[str, Any]]:
        """The events of one name so far."""
        return [e for e in json_lines(self.run_dir / "events.jsonl") if e["event"] == name]

    def verdict(self, until: Until, limit_s: float = 30) -> dict[str, Any]:
        """Wait for the verdict."""
        until(lambda: self.events("verdict"), limit_s=limit_s)
        (verdict,) = self.events("verdict")
        return verdict


@pytest.fixture
def launch(tmp_path: Path, bench: Any) -> Iterator[Launch]:
    """A launch of one node; its ranks are ended with the test."""
    made = Launch(tmp_path, bench, f"watch-{os.getpid()}-{tmp_path.name}")
    yield made
    for process in made.started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def ended(*processes: Any) -> bool:
    """Whether all of them have ended."""
    return all(process.poll() is not None for process in processes)


@pytest.mark.parametrize(
    ("mode", "line"),
    [("sleep", "hang_in_sleep"), ("c", "hang_in_c"), ("regex", "hang_in_regex")],
)
def test_a_rank_that_hangs_is_named_and_all_end(
    launch: Launch, until: Until, mode: str, line: str
) -> None:
    """With its line, also while it holds the GIL; its peer waits for it, and ends with it."""
    recording = launch.watch()
    waiting, hung = launch.trainer(0, "wait"), launch.trainer(1, mode)
    launch.hang(recording, until)
    verdict = launch.verdict(until)
    assert (verdict["kind"], verdict["rank"], verdict["node"]) == ("hung", 1, "n1")
    assert line in verdict["top"]
    assert f"{line}, for " in verdict["text"]
    assert "rank 0 waits at step 1000000 in backward" in verdict["text"]
    until(lambda: ended(waiting, hung), limit_s=10)
    report = launch.events("hang_report")[-1]  # on a busy machine it may look twice
    assert [Path(rank["stack"]).name for rank in report["ranks"]] == [
        "stack-1-rank-0.txt",
        "stack-1-rank-1.txt",
    ]
    assert all(Path(rank["stack"]).stat().st_size for rank in report["ranks"])
    code, output = recording.end()
    assert (code, output) == (0, f"monitor: {verdict['text']}\n")
    (last,) = launch.events("last_beats")
    assert last["ranks"]["1"]["step"] == 10**5
    assert last["ranks"]["1"]["phase"] == "forward"


def test_a_stopped_rank_is_named(launch: Launch, until: Until) -> None:
    """It answers nothing; its state says why."""
    recording = launch.watch()
    others, stopped = launch.trainer(0, "wait"), launch.trainer(1, "stop")
    launch.hang(recording, until)
    verdict = launch.verdict(until)
    assert (verdict["kind"], verdict["rank"]) == ("stopped", 1)
    assert "is stopped by a signal (state T)" in verdict["text"]
    until(lambda: ended(others, stopped), limit_s=10)


def test_a_rank_that_goes_on_in_time_trips_nothing(launch: Launch, until: Until) -> None:
    """Stopped for a part of the limit, it goes on, and nothing is reported."""
    recording = launch.watch("4")
    rank = launch.trainer(0, "run")
    launch.hang(recording, until)
    time.sleep(1)
    rank.send_signal(signal.SIGSTOP)
    time.sleep(2)
    rank.send_signal(signal.SIGCONT)
    time.sleep(3)
    assert rank.poll() is None
    assert recording.end() == (0, "")
    assert not launch.events("hang_report")
    assert launch.events("last_beats")[0]["ranks"]["0"]["age_s"] < 2


def test_a_launcher_a_debugger_and_torchrun_are_left_alone(launch: Launch, until: Until) -> None:
    """Only the ranks' own commands end: who carries no rank sees it and tells."""
    recording = launch.watch()
    bystanders = [
        subprocess.Popen(["sleep", "60"], env=launch.env(**carried), start_new_session=True)
        for carried in (
            {},
            {"DDP_RANK_ID": f"{launch.token}/node0"},
            {"DDP_RANK_ID": f"{launch.token}x/0"},
        )
    ]
    launch.started += bystanders
    child = launch.rank(
        5,
        "bash",
        "-c",
        f"{sys.executable} {RANKS} sleep $DDP_BEAT_DIR 5 $R; :",
        R=str(launch.run_dir),
    )
    launch.hang(recording, until)
    launch.verdict(until)
    until(lambda: ended(child), limit_s=10)
    assert not any(process.poll() for process in bystanders)


@pytest.mark.parametrize("timeout", ["0", ""], ids=["off", "learned"])
def test_it_decides_nothing_in_seconds(launch: Launch, until: Until, timeout: str) -> None:
    """Switched off, or with the default's timeout; where ranks were is reported all the same."""
    recording = launch.watch(timeout)
    launch.trainer(0, "sleep")
    launch.hang(recording, until)
    time.sleep(4)
    assert recording.end() == (0, "")
    assert not launch.events("hang_report")
    assert launch.events("last_beats")[0]["ranks"]["0"]["phase"] == "forward"


def test_a_command_that_does_nothing_is_classified_by_its_log_and_its_time(
    launch: Launch, until: Until
) -> None:
    """No heartbeat: a silent log and no processor time, for as long as was given."""
    sleeper = launch.rank(0, "sleep", "60")
    launch.watch("3")
    verdict = launch.verdict(until)
    assert (verdict["rank"], verdict["gpu"]) == (0, "no GPU")
    assert "nanosleep" in verdict["top"]
    until(lambda: ended(sleeper), limit_s=10)


def test_a_command_that_does_something_goes_on(launch: Launch, until: Until) -> None:
    """It talks, or it computes, or its child does."""
    scripts = (
        "while :; do echo line; sleep 0.5; done",
        "while :; do :; done",
        "(while :; do :; done)& wait",
    )
    ranks = [launch.rank(rank, "bash", "-c", script) for rank, script in enumerate(scripts)]
    recording = launch.watch("1.5")
    until(recording.rows)
    time.sleep(6)
    assert [rank.poll() for rank in ranks] == [None] * 3
    assert not launch.events("hang_report")


def test_a_command_whose_gpu_waits(launch: Launch, until: Until, driver: Any) -> None:
    """Busy at low power with no memory traffic: a core that is busy meanwhile means nothing."""
    driver.does("gpus 2", "set sm * 100", "set mem * 0", "set power_mw * 120000")
    rank = launch.rank(0, "bash", "-c", "while :; do :; done", CUDA_VISIBLE_DEVICES="1")
    launch.watch("3", **driver.env)
    verdict = launch.verdict(until)
    assert (verdict["rank"], verdict["gpu"]) == (0, "GPU 1")
    (report,) = launch.events("hang_report")
    assert report["ranks"][0]["pattern"] == "waiting"
    until(lambda: ended(rank), limit_s=10)


def test_a_command_whose_gpu_works_goes_on(launch: Launch, until: Until, driver: Any) -> None:
    """It needs neither to talk nor to compute."""
    driver.does("gpus 2")
    rank = launch.rank(0, "sleep", "60", CUDA_VISIBLE_DEVICES="1")
    recording = launch.watch("2", **driver.env)
    until(recording.rows)
    time.sleep(6)
    assert rank.poll() is None
    assert not launch.events("hang_report")


def test_a_dead_launcher_leaves_last_heartbeats_and_no_directory(
    launch: Launch, until: Until
) -> None:
    """What the launcher would have removed, the recorder removes."""
    parent = subprocess.Popen(["sleep", "60"])
    recording = launch.watch("60", "--parent-pid", parent.pid)
    launch.trainer(0, "run")
    launch.hang(recording, until)
    parent.kill()
    parent.wait()
    assert recording.process.wait(timeout=20) == 0
    (last,) = launch.events("last_beats")
    assert last["ranks"]["0"]["step"] > 0
    assert launch.events("orphans")
    assert not launch.heartbeat_dir.exists()


def test_it_acts_while_the_run_directory_hangs(launch: Launch, until: Until) -> None:
    """Neither events nor stacks can be written: the ranks end all the same, and soon."""
    launch.begin()
    os.mkfifo(launch.run_dir / "events.jsonl")  # opened for writing, it waits for a reader
    recording = launch.watch("2")
    hung = launch.trainer(0, "sleep")
    launch.hang(recording, until)
    until(lambda: ended(hung), limit_s=25)


@pytest.mark.parametrize("value", ["soon", "-1", "nan"])
def test_a_wrong_timeout_is_one_line_and_64(launch: Launch, value: str) -> None:
    """As any wrong input."""
    recording = launch.watch(value)
    _, output = recording.process.communicate(timeout=20)
    assert recording.process.returncode == 64
    assert output.startswith("monitor: DDP_HANG_TIMEOUT must")
    assert output.count("\n") == 1
