"""Ray Train on a Ray cluster of the job's tasks."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.examples.conftest import Example

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


@pytest.mark.parametrize("example", ["a task a node"], indirect=True)
def test_the_tasks_are_one_ray_cluster(example: Callable[[str], Example]) -> None:
    """After `kill -9` of a task the job starts it again, and Ray goes on from its checkpoint."""
    it = example("ray")
    cores = os.cpu_count() or 1  # of each Ray node: one worker more needs both
    command = f"./cluster.sh python train.py --steps 200 --workers {cores + 1}"
    run = it.start(command, DDP_NPROC_PER_NODE="1")
    run.wait_for_word("saved step ", timeout_s=180)
    # Ray's controller lists a reported checkpoint a moment later, and goes on from listed ones.
    listed = run.run_dir / "ray" / "checkpoint_manager_snapshot.json"
    run.cluster.until(
        lambda: listed.exists() and "checkpoint_2" in listed.read_text(), 60, f"{listed} lists one"
    )
    it.leave(1)  # the next start finds more than that done
    os.kill(run.pid(1), signal.SIGKILL)
    assert run.end(timeout_s=240) == ("COMPLETED", 0, 0), run.log
    assert it.record()["attempts"][0]["first_failure"]["rank"] == 1
    assert it.last("resumed at", 2) > it.last("finished at", 2) == 1
    assert run.all_gone()
