"""What a job does about a fault, on the virtual cluster: real kills, real requeues, real nodes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults.job import when
from tests.jobs import standbys

ROOT = Path(__file__).resolve().parents[2]
PRELAUNCH = str(ROOT / "jobs" / "prelaunch.sh")
TWO_BY_TWO = ("--nodes=2", "--ntasks-per-node=2")
# Its steps take 20 ms asleep, for what waits for a restart needs the cores, and an epoch takes half
# an hour: no checkpoint at its end is newer than a snapshot.
TRAINER = ("--workload", "fault_workload:Breakable", "--max-steps", "100000", "--log-every", "5")

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def test_a_killed_rank_costs_seconds(job: Any, cluster: Any, tmp_path: Path) -> None:
    """kill -9 of a rank: torn down within 10 s; four that waited train on, from a snapshot."""
    workload = {"PYTHONPATH": str(ROOT / "tests" / "faults"), "FAULT_DIR": str(tmp_path)}
    options = (*TRAINER, "--snapshot-every=5", "--global-batch-size=4")
    run = job(*TWO_BY_TWO, PRELAUNCH, *options, DDP_WARM="1", **workload)
    cluster.until(lambda: bool(run.events("snapshot")), 240, "the first snapshot")
    pids = {event["pid"] for event in run.events("rank_up")}
    cluster.until(lambda: len(standbys.waiting(run.directory, pids)) == 4, 90, "four ranks wait")
    waiting = standbys.waiting(run.directory, pids)
    killed_at = time.time()
    os.kill(run.pid(2), signal.SIGKILL)
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.time() < killed_at + 10, run.log
        time.sleep(0.05)
    torn_down_s = time.time() - killed_at
    steps = run.wait_for("first_step", 2, timeout_s=120)
    resumed = run.events("rank_up")[4:]
    assert {event["pid"] for event in resumed} == waiting
    print(
        f"killed -> torn down {torn_down_s:.1f} s -> ranks up {when(resumed[0]) - killed_at:.1f} s"
        f" -> first step {when(steps[1]) - killed_at:.1f} s"
    )
    resume = run.events("resume")[-1]
    assert steps[1]["step"] == resume["step"] + 1 > 1
    assert resume["path"].startswith("/dev/shm/ddp-snapshots."), run.log
    last = next(line for line in run.log.splitlines() if "restart 1 of 3" in line)
    assert "rank 2 on node2 was killed by signal 9" in last
    assert [event["decision"] for event in run.events("decision")] == ["restart"]
    run.cancel()
    run.end()
    assert run.all_gone()


def test_two_jobs_on_one_run(job: Any, cluster: Any) -> None:
    """Of two jobs with one run name the second is refused, or waits until the first is gone."""
    until_told = ("--", "bash", "-c", "until [ -e go ]; do sleep 0.1; done")
    first = job(PRELAUNCH, *until_told, DDP_RUN_NAME="one")
    first.wait_for("rank_up", 1)
    refused = job(PRELAUNCH, "--", "true", DDP_RUN_NAME="one")
    waiting = job(PRELAUNCH, "--", "true", DDP_RUN_NAME="one", DDP_ON_BUSY="wait")
    assert refused.end() == ("FAILED", 64, 0)
    assert f"belongs to job {first.id} on node" in refused.log.splitlines()[-1]
    cluster.until(lambda: "waiting for the run one" in waiting.log, 60, "the third waits")
    (first.directory / "go").touch()
    assert first.end() == ("COMPLETED", 0, 0)
    assert waiting.end() == ("COMPLETED", 0, 0)
    assert waiting.log.count("waiting for the run one") == 1
    owners = [event["job_id"] for event in first.events("start")]
    assert owners == [str(first.id), str(waiting.id)]
    names = [e["event"] for e in first.events() if e["event"] in {"start", "end"}]
    assert names == ["start", "end", "start", "end"]
