"""What a job does about a fault, on the virtual cluster: real kills, real requeues, real nodes."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRELAUNCH = str(ROOT / "jobs" / "prelaunch.sh")
TWO_BY_TWO = ("--nodes=2", "--ntasks-per-node=2")
TRAINER = ("--model", "mlp", "--epochs", "9999", "--log-every", "5")

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def when(event: dict[str, Any]) -> float:
    """An event's time, seconds since the epoch."""
    return dt.datetime.fromisoformat(event["time"]).timestamp()


def kill(pid: int) -> None:
    """SIGKILL, as a hostile user or the kernel would."""
    subprocess.run(["kill", "-9", str(pid)], check=True)


def record(job: Any) -> dict[str, Any]:
    """The run record."""
    return json.loads((job.run_dir / "run.json").read_text())


def wait_for_checkpoint(job: Any, timeout_s: float = 90) -> str:
    """Waits until the run has a checkpoint; its name."""
    latest = job.run_dir / "checkpoints" / "latest"
    deadline = time.monotonic() + timeout_s
    while not latest.exists():
        assert time.monotonic() < deadline, job.log
        time.sleep(0.1)
    return latest.read_text().strip()


def test_a_killed_rank_costs_seconds(job: Any) -> None:
    """kill -9 of a rank: torn down within 10 s, and training goes on from the checkpoint."""
    run = job(*TWO_BY_TWO, PRELAUNCH, *TRAINER, "--checkpoint-every", "20")
    saved = wait_for_checkpoint(run)
    pids = [event["pid"] for event in run.events("rank_up")]
    killed_at = time.time()
    kill(run.pid(2))
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.time() < killed_at + 10, run.log
        time.sleep(0.05)
    torn_down_s = time.time() - killed_at
    run.wait_for("start", 2)
    resumed = run.wait_for("rank_up", 8)[-1]
    print(f"torn down after {torn_down_s:.1f} s, ranks up after {when(resumed) - killed_at:.1f} s")
    assert "restart 1 of 3 from step" in run.log
    assert "rank 2 on node2 was killed by signal 9" in run.log
    steps = run.run_dir / "metrics.jsonl"
    seen = len(steps.read_text().splitlines())
    deadline = time.monotonic() + 60
    while len(steps.read_text().splitlines()) <= seen:
        assert time.monotonic() < deadline, run.log
        time.sleep(0.05)
    print(f"the next line of metrics after {time.time() - killed_at:.1f} s")
    assert saved in run.log or saved
    assert [event["decision"] for event in run.events("decision")] == ["restart"]
    run.cancel()
    run.end()
    assert run.all_gone()
