"""Ranks that hang, under prelaunch.sh as users start it: one line says where, the code is 76."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.growing import events_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Result, Scripts

    Patience = Callable[[float], float]

PRELAUNCH = str(Path(__file__).resolve().parents[2] / "jobs" / "prelaunch.sh")

pytestmark = pytest.mark.slow  # real processes: seconds, not milliseconds

FIVE = {"DDP_HANG_TIMEOUT": "5"}
TRAIN = (
    *("--model", "mlp", "--epochs", "9999"),
    *("--global-batch-size", "2"),  # long epochs: no save, which may take longer, when it hangs
)


class Training:
    """A run in place whose two ranks take steps."""

    def __init__(self, scripts: Scripts, patience: Patience, *args: str, **env: str) -> None:
        self.patience = patience
        self.directory = scripts.directory
        self.scripts = scripts
        settings = {"DDP_MONITOR": "1", "DDP_MAX_RESTARTS": "0"}
        self.process = scripts.start("prelaunch.sh", *args, **(settings | env))

    def events(self, name: str) -> list[dict[str, Any]]:
        """The events of one name so far."""
        return events_below(self.directory, name)

    def wait_for(self, name: str, count: int = 1, timeout_s: float = 90) -> list[dict[str, Any]]:
        """Wait until there are so many events of a name."""
        began = time.monotonic()
        while len(found := self.events(name)) < count:
            assert time.monotonic() - began < self.patience(timeout_s), f"no {name}"
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.05)
        return found

    def pid(self, rank: int) -> int:
        """The process of a rank."""
        return next(e["pid"] for e in self.wait_for("rank_up", 2) if e["rank"] == rank)

    def end(self, timeout_s: float = 60) -> Result:
        """Wait for the end."""
        return self.scripts.finish(self.process, timeout_s)


@pytest.fixture
def train(scripts: Scripts, patience: Patience) -> Iterator[Callable[..., Training]]:
    """Start trainings, and leave none behind."""
    started: list[Training] = []

    def begin(*args: str, **env: str) -> Training:
        started.append(Training(scripts, patience, *args, **env))
        return started[-1]

    yield begin
    for training in started:
        if training.process.poll() is None:
            training.process.terminate()
            training.process.communicate(timeout=60)


def beats_left(result: Result) -> list[str]:
    """What is left of this run where beats lie."""
    job_id = result.of("start")[0]["job_id"]
    return [path.name for path in Path("/dev/shm").glob(f"ddp.{job_id}.*")]


def check_verdict(result: Result, *words: str) -> dict[str, Any]:
    """Code 76, one verdict, which is the last line's beginning; nothing is left."""
    assert result.code == 76, result.err
    (verdict,) = result.of("verdict")
    last = result.err.splitlines()[-1]
    for word in words:
        assert word in verdict["text"]
        assert word in last
    assert not beats_left(result)
    assert [event["node"] for event in result.of("last_beats")]
    return verdict


def test_a_stopped_rank_ends_the_job_with_76(
    train: Callable[..., Training], patience: Patience
) -> None:
    """Seen within the limit and a little, torn down at once, and named in the last line."""
    training = train(*TRAIN, **FIVE)
    training.wait_for("first_step")
    time.sleep(2)
    os.kill(training.pid(1), signal.SIGSTOP)
    stopped_s = time.monotonic()
    training.wait_for("verdict", timeout_s=20)
    seen_s = time.monotonic() - stopped_s
    result = training.end()
    assert 4 < seen_s < patience(15)
    verdict = check_verdict(result, "rank 1 on ", "(no GPU) is stopped", "(state T), for 5 s")
    assert (verdict["kind"], verdict["rank"]) == ("stopped", 1)
    (report,) = result.of("hang_report")
    waiting = report["ranks"][0]
    assert "_engine_run_backward" in waiting["top"] or "all_reduce" in waiting["top"]
    assert Path(waiting["stack"]).stat().st_size


def test_a_command_that_sleeps_is_ended(scripts: Scripts) -> None:
    """Silent for as long as was given, and no processor time: 76 for a foreign command, too."""
    scripts.env["DDP_MONITOR"] = "1"
    result = scripts.run("prelaunch.sh", "--", "bash", "-c", "echo up; exec sleep 600", **FIVE)
    check_verdict(result, "hang")


def test_who_hangs_while_the_others_have_ended_is_watched(scripts: Scripts) -> None:
    """Rank 0 has finished, and its launcher with the monitor waits for the node's last rank."""
    scripts.env["DDP_MONITOR"] = "1"
    script = '[ "$RANK" = 0 ] || exec sleep 600'
    result = scripts.run("prelaunch.sh", "--", "bash", "-c", script, **FIVE)
    verdict = check_verdict(result, "rank 1 on ")
    assert verdict["rank"] == 1


def test_without_a_monitor_nothing_is_watched_and_nothing_stays(scripts: Scripts) -> None:
    """DDP_MONITOR=0: the ranks run as they did."""
    result = scripts.run("prelaunch.sh", "--", "sleep", "3", DDP_HANG_TIMEOUT="1")
    assert result.code == 0
    assert not beats_left(result)
    assert not result.of("last_beats")


@pytest.mark.slurm
def test_a_node_that_works_is_asked_and_prevents_a_verdict(job: Any) -> None:
    """One node's rank is silent for long, and the other's is not: the job goes on.

    The silent one ends first: alone it would be blamed.
    """
    script = "for ((i = -20 * RANK; i < 40; i++)); do ((RANK == 0)) || echo works; sleep 0.5; done"
    run = job(
        *("--nodes=2", "--ntasks-per-node=1", PRELAUNCH, "--", "bash", "-c", script),
        DDP_HANG_TIMEOUT="2",
    )
    assert run.end()[:2] == ("COMPLETED", 0), run.log
    reports = run.events("hang_report")
    assert {e["node"] for e in reports if e["suspicious"]} == {"node1"}
    assert "node2" in {event["node"] for event in reports}
    assert not run.events("verdict")
