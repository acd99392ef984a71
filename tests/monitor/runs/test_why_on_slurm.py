"""`why` beside real Slurm daemons: what it says of a job is what the controller says."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).resolve().parents[3]


def screen(cluster: Any, run_dir: Path) -> list[str]:
    """What `why` shows, with the cluster's client at hand."""
    done = subprocess.run(
        [sys.executable, "-m", "monitor", "why", str(run_dir)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=cluster.env,
        cwd=ROOT,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_a_job_that_runs_and_is_then_cancelled(cluster: Any, tmp_path: Path) -> None:
    """Running by Slurm's word; then cancelled by its word, though its command ended with 143."""
    options = ["--nodes=2", "--ntasks-per-node=1", ROOT / "jobs/prelaunch.sh", "--", "sleep", "99"]
    job = cluster.submit(options, cwd=tmp_path, env={"DDP_PYTHON": sys.executable})
    run_dir = tmp_path / "out" / f"slurm-{job}"
    events = run_dir / "events.jsonl"
    try:
        deadline = time.monotonic() + 60
        while not events.exists() or events.read_text().count('"rank_up"') < 2:
            assert time.monotonic() < deadline, "the ranks did not come up"
            time.sleep(0.1)
        lines = screen(cluster, run_dir)
        assert lines[0].startswith("STILL RUNNING: no step yet, last line ")
        assert f"Slurm   job {job} RUNNING" in lines
    finally:
        cluster.run(["scancel", str(job)])
    cluster.wait(job)
    deadline = time.monotonic() + 60
    while '"event": "end"' not in events.read_text():
        assert time.monotonic() < deadline, "no end was reported"
        time.sleep(0.1)
    lines = screen(cluster, run_dir)
    assert lines[0] == "STOPPED: the run was cancelled [cancelled; code 143]"
    assert f"Slurm   job {job} CANCELLED, exit code 143:0" in lines


def test_an_unknown_job(cluster: Any, tmp_path: Path) -> None:
    """The controller has never heard of it: the screen does without its word."""
    start = {"time": "2026-11-21T04:17:00.000Z", "event": "start", "attempt": 1, "host": "n1"}
    reported = [start | {"job_id": "999999", "run": "x"}, start | {"event": "end", "code": 1}]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in reported))
    lines = screen(cluster, tmp_path)
    assert lines[0] == "FAILED: the run could not start its ranks [program; code 1]"
    assert not any(line.startswith("Slurm") for line in lines)
