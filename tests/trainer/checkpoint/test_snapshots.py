"""Snapshots in memory: real ranks that are killed, and what a restart goes on from."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rundir.paths import snapshots_prefix
from tests.trainer.conftest import Ranks
from tests.trainer.saved import ALONE, all_of, events, open_folder, state_at
from trainer.checkpoint.snapshots import MEMORY, Snapshots, keepers
from trainer.telemetry.events import EventLog

EVERY = 5
OPTIONS = (
    "--model=mlp",
    "--max-steps=200",
    "--log-every=1",
    "--val-every=1000",
    "--checkpoint-minutes=0",
    "--num-workers=0",
    f"--snapshot-every={EVERY}",
)


class Job:
    """The launcher's words for the starts of one job."""

    def __init__(self, name: str) -> None:
        self.name = name

    def env(self, attempt: int, node: str = "one") -> dict[str, str]:
        """Of a rank; {rank} stands for its number."""
        launch_id = f"{self.name}.{attempt}.1"
        return {"DDP_LAUNCH_ID": launch_id, "DDP_NODE": node, "DDP_ATTEMPT": str(attempt)}

    def directory(self, node: str = "one") -> Path:
        """Of a node's snapshots."""
        return MEMORY / f"{snapshots_prefix(f'{self.name}.1.1')}{node}"


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """A job, of which nothing is left in memory."""
    job = Job(f"test-{os.getpid()}-{tmp_path.name}")
    yield job
    for path in MEMORY.glob(f"{snapshots_prefix(f'{job.name}.1.1')}*"):
        shutil.rmtree(path)


def kill_after(ranks: Ranks, step: int, rank: int = 1) -> int:
    """Kill a rank at a step or later, as the launcher then ends the others; the last step."""
    ranks.wait_for_step(step)
    ranks.processes[rank].kill()
    ranks.end()
    return int(ranks.run.metrics()[-1]["step"])


def resumes(ranks: Ranks) -> list[tuple[int, str | None]]:
    """Step and path of each start."""
    return [(e["step"], e["path"]) for e in ranks.run.events("resume")]


def steps_in(directory: Path) -> list[int]:
    """The steps of a node's snapshots, of each rank."""
    found = [json.loads(path.read_text())["step"] for path in directory.glob("*.json")]
    return sorted(found)


def last_losses(ranks: Ranks) -> list[float]:
    """The loss of the last 20 steps."""
    return ranks.run.losses()[-20:]


@pytest.fixture
def start(start_ranks: Callable[..., Ranks]) -> Callable[..., Ranks]:
    """Start two ranks with snapshots."""

    def start(*options: str, env: dict[str, str], out: str = "run") -> Ranks:
        return start_ranks(2, *OPTIONS, *options, env=env, out=out)

    return start


def test_a_killed_rank_costs_at_most_the_steps_since_the_last_two(
    start: Callable[..., Ranks], job: Job
) -> None:
    """The restart begins at a snapshot, and ends with the losses of a run that was not killed."""
    ranks = start(env=job.env(1))
    killed_step = kill_after(ranks, 30)
    again = start(env=job.env(2))
    assert again.wait() == [0, 0], again.output
    (_, (step, path)) = resumes(again)
    assert path == str(job.directory())
    # One that was being completed when the rank was killed does not count.
    assert killed_step - 2 * EVERY <= step <= killed_step + 1
    assert step % EVERY == 0
    assert not job.directory().exists()  # a checkpoint holds as much
    whole = start("--snapshot-every=0", env=job.env(1), out="whole")
    assert whole.wait() == [0, 0]
    assert last_losses(again) == last_losses(whole)
    assert again.run.checkpoints() == whole.run.checkpoints()  # it is no checkpoint
