"""Back to the queue, on a virtual cluster of its own whose jobs may be preempted."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import own_cluster
from tests.jobs.conftest import Job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


PRELAUNCH = str(Path(__file__).resolve().parents[2] / "jobs" / "prelaunch.sh")
# Slurm looks every 30 s, and sends it up to 30 s early: from 15 to 45 s after the start. What it
# sends to a script that is still being started is lost, or ends it.
NEAR_LIMIT = ("--time=1", "--signal=B:USR1@15")
NO_REQUEUE = ("--no-requeue",)
# Writes a checkpoint when it is asked to stop, and finishes in its second start.
PROGRAM = (
    "bash",
    "-c",
    (
        """trap 'echo "step-$DDP_ATTEMPT" >"$DDP_RUN_DIR/checkpoints/latest"; exit 75' USR1 TERM;"""
        """ echo "start $DDP_ATTEMPT seed $DDP_SEED"; ((DDP_ATTEMPT < 2)) || exit 0;"""
        """ while :; do sleep 0.2; done"""
    ),
)

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


@pytest.fixture(scope="module")
def own(cluster_at: Callable[..., Any]) -> Iterator[Any]:
    """A cluster with a partition that preempts and one whose jobs are cancelled by it."""
    yield from own_cluster(cluster_at, "tr", 97, nodes=5, PREEMPT="1")


@pytest.fixture(scope="module")
def jobs(own: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Job]]:
    """All jobs of this file, by name, at once: what they wait for is Slurm's clock."""

    def submit(name: str, *args: str, **env: str) -> Job:
        directory = tmp_path_factory.mktemp(name)
        return Job(own, directory, *args, PRELAUNCH, "--", *PROGRAM, DDP_MONITOR="0", **env)

    # Slurm requeues a dead node's job itself, perhaps a moment before us.
    before_us = tmp_path_factory.mktemp("bin") / "scontrol"
    scontrol = shutil.which("scontrol")
    before_us.write_text(
        f'#!/bin/sh\nif [ "$1" = requeue ]; then {scontrol} "$@"; fi\nexec {scontrol} "$@"\n'
    )
    before_us.chmod(0o755)
    path = f"{before_us.parent}:{os.environ['PATH']}"
    resources = (*NO_REQUEUE, "--gres=gpu:1", "--mem=100M")
    limited = ("--nodelist=tr1", *NEAR_LIMIT)
    found = {
        "limited": submit("limited", "--ntasks=2", *limited),
        "requeued before us": submit("twice", "--ntasks=1", *limited, PATH=path),
        "limited for good": submit("successor", "--ntasks=2", *resources, *limited),
        "limited once": submit("once", "--ntasks=1", *limited, DDP_REQUEUE="0"),
    }
    preempted = ("preempted", ()), ("cancelled", ("--partition=spot",)), ("for good", NO_REQUEUE)
    for number, (name, options) in enumerate(preempted, 3):
        node = (f"--nodelist=tr{number}", "--exclusive")
        found[name] = submit(name.replace(" ", "-"), *options, *node)
        found[name].wait_for_word("start")
        own.submit(["--partition=urgent", *node, "--output=/dev/null", "--wrap", "sleep 3"])
    yield found
    for job in found.values():
        job.cancel()
        print(f"--- the log of job {job.id}", *job.log.splitlines()[-60:], sep="\n")


def decisions(job: Job) -> list[str]:
    """The decisions so far."""
    return [event["decision"] for event in job.events("decision")]


def seeds(job: Job) -> set[str]:
    """The seeds that the rank has seen in its starts."""
    text = (job.run_dir / "logs" / "rank-0.log").read_text()
    return {line.split()[3] for line in text.splitlines() if line.startswith("start")}


def test_at_the_time_limit_the_job_is_requeued(jobs: dict[str, Job]) -> None:
    """The same job starts again, in the same directory, with the same seed, and finishes."""
    job = jobs["limited"]
    job.wait_for("decision", 2, timeout_s=120)
    assert job.end() == ("COMPLETED", 0, 0)
    assert decisions(job) == ["requeue", "finish"]
    assert [event["restart_count"] for event in job.events("start")] == [0, 1]
    assert f"job {job.id} is requeued and will go on from step 1" in job.log
    assert len(seeds(job)) == 1
    record = json.loads((job.run_dir / "run.json").read_text())
    assert [attempt["code"] for attempt in record["attempts"]] == [75, 0]


def test_a_requeue_that_slurm_has_just_made_is_no_refusal(jobs: dict[str, Job]) -> None:
    """Slurm may requeue the job of a dead node a moment before us: that job has no successor."""
    job = jobs["requeued before us"]
    job.wait_for("decision", 2, timeout_s=120)
    assert job.end() == ("COMPLETED", 0, 0)
    assert decisions(job) == ["requeue", "finish"]
    assert [event["job_id"] for event in job.events("start")] == [str(job.id)] * 2
    assert "was refused" not in job.log


def test_where_requeue_is_off_a_successor_carries_on(own: Any, jobs: dict[str, Job]) -> None:
    """The successor has the job's resources, its run and its seed."""
    job = jobs["limited for good"]
    job.wait_for("decision", 2, timeout_s=120)
    assert decisions(job) == ["successor", "finish"]
    (line,) = [line for line in job.log.splitlines() if "is submitted and carries on" in line]
    successor = int(line.split()[2])
    assert own.wait(successor) == ("COMPLETED", 0, 0)
    first, second = own.job(job.id), own.job(successor)
    for field in ("NumTasks", "TresPerNode", "MinMemoryNode", "TimeLimit", "Partition", "StdOut"):
        assert second[field] == first[field], (field, second)
    assert second["Requeue"] == "0"
    assert len(seeds(job)) == 1
    assert [event["job_id"] for event in job.events("start")] == [str(job.id), str(successor)]


def test_requeue_can_be_turned_off(jobs: dict[str, Job]) -> None:
    """DDP_REQUEUE=0: the job ends with 75 and says how to go on."""
    job = jobs["limited once"]
    assert job.end() == ("FAILED", 75, 0)
    assert "DDP_REQUEUE=0" in job.log.splitlines()[-1]


@pytest.mark.parametrize("name", ["preempted", "cancelled"])
def test_a_preempted_job_comes_back(jobs: dict[str, Job], name: str) -> None:
    """Slurm requeues a preempted job itself, or cancels it, and then we bring it back."""
    job = jobs[name]
    job.wait_for("decision", 2, timeout_s=150)
    assert decisions(job) == ["requeue", "finish"]
    # Slurm 24.11 keeps the word of a preemption that cancelled for the start after it.
    assert job.end() in [("COMPLETED", 0, 0), ("PREEMPTED", 0, 0)]
    assert "step 1" in job.log


def test_a_preempted_job_without_requeue_has_a_successor(jobs: dict[str, Job]) -> None:
    """Requeue=0: what was preempted is submitted anew."""
    job = jobs["for good"]
    job.wait_for("decision", 2, timeout_s=150)
    assert decisions(job) == ["successor", "finish"]


def test_a_cancelled_job_stays_away(own: Any, job_on: Callable[..., Job]) -> None:
    """scancel ends the run, although the ranks end with 75."""
    job = job_on(own, "--ntasks=2", PRELAUNCH, "--", *PROGRAM, DDP_MONITOR="0")
    job.wait_for_word("start", 2)
    job.cancel()
    assert job.end()[0] == "CANCELLED"
    assert decisions(job) == ["fail"]
    last = job.log.splitlines()[-1]
    assert "the job was cancelled" in last
    assert f"DDP_RUN_NAME=slurm-{job.id}" in last
    assert job.all_gone()
