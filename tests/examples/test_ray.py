"""Ray Train on a Ray cluster of the job's tasks."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.thorough import parameters

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.examples.conftest import Example

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


MORE = 30
"""Steps: more than are done between what Ray has printed and the kill; it prints late."""
CORES = os.cpu_count() or 1
"""Of each Ray node: one worker more needs both."""


@pytest.mark.parametrize(
    ("example", "num_workers"),
    parameters([("in place", 2), ("a task a node", CORES + 1)], [("in place", 2)]),
    indirect=["example"],
)
def test_the_tasks_are_one_ray_cluster(example: Callable[[str], Example], num_workers: int) -> None:
    """After `kill -9` of a task the job starts it again, and Ray goes on from its checkpoint."""
    it = example("ray")
    command = f"./cluster.sh python train.py --steps 200 --workers {num_workers}"
    run = it.start(command, DDP_NPROC_PER_NODE="1")
    run.wait_for_word("saved step ", timeout_s=180)
    # Ray's controller lists a reported checkpoint a moment later, and goes on from listed ones.
    listed = run.run_dir / "ray" / "checkpoint_manager_snapshot.json"
    run.cluster.until(
        lambda: listed.exists() and "checkpoint_2" in listed.read_text(), 60, f"{listed} lists one"
    )
    steps = it.last("saved", 1) + MORE
    it.leave(steps)
    rank = max(event["rank"] for event in run.events("rank_up"))
    os.kill(run.pid(rank), signal.SIGKILL)
    assert run.end(timeout_s=240) == ("COMPLETED", 0, 0), run.log
    assert it.record()["attempts"][0]["first_failure"]["rank"] == rank
    assert 0 < it.last("resumed at", 2) < it.last("finished at", 2) == steps
    assert run.all_gone()
