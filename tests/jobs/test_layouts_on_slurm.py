"""A model that is spread over nodes, on the virtual cluster: killed, and resumed on fewer ranks."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.growing import json_lines

ROOT = Path(__file__).resolve().parents[2]
PRELAUNCH = str(ROOT / "jobs" / "prelaunch.sh")
OPTIONS = (
    "--workload lm --model toy --sequence-length 64 --mock-tokens 9000 --global-batch-size 8 "
    "--optimizer sgd --lr 0.1 --schedule constant --log-every 1 --val-every 100000 "
    "--checkpoint-every 20 --num-workers 0"
)

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def losses(job: Any, attempt: int) -> dict[int, float]:
    """Each step's loss in one attempt."""
    lines = json_lines(job.run_dir / "metrics.jsonl")
    return {m["step"]: m["loss"] for m in lines if m["attempt"] == attempt and "loss" in m}


def test_fsdp_and_tp_over_nodes_go_on_as_one_nodes_fsdp(job: Any) -> None:
    """2 x 2 ranks, of which one is killed; then 2 ranks of another layout, on the same numbers.

    Without restarts `kill -9` of a rank fails the job, and the record says which rank and how far.
    """
    spread = (*OPTIONS.split(), "--strategy", "fsdp", "--tp", "2", "--max-steps", "99999")
    two_by_two = ("--nodes=2", "--ntasks-per-node=2")
    first = job(*two_by_two, PRELAUNCH, *spread, DDP_RUN_NAME="spread", DDP_MAX_RESTARTS="0")
    first.cluster.until(lambda: len(losses(first, 1)) >= 25, 150, "it trains")
    subprocess.run(["kill", "-9", str(first.pid(2))], check=True)
    assert first.end() == ("FAILED", 137, 0), first.log
    assert "rank 2 on node2" in first.log.splitlines()[-1]
    assert "dp_shard 2 x tp 2" in first.log
    assert first.all_gone()
    done = losses(first, 1)
    (attempt,) = json.loads((first.run_dir / "run.json").read_text())["attempts"]
    assert attempt["first_failure"]["rank"] == 2
    assert (attempt["summary"]["outcome"], attempt["summary"]["steps"]) == ("failed", max(done))

    fewer = (*OPTIONS.split(), "--strategy", "fsdp", "--max-steps", str(max(done) + 5))
    again = job("--nodes=1", "--ntasks-per-node=2", PRELAUNCH, *fewer, DDP_RUN_NAME="spread")
    assert again.end(timeout_s=200) == ("COMPLETED", 0, 0), again.log
    (resumed,) = (event["step"] for event in again.events("resume") if event["attempt"] == 2)
    assert resumed >= 20
    redone = losses(again, 2)
    assert sorted(redone) == list(range(resumed + 1, max(done) + 6))
    twice = done.keys() & redone.keys()
    assert twice
    assert all(redone[step] == pytest.approx(done[step], rel=1e-5) for step in twice)
