"""The main job end to end: the trainer on the virtual cluster, on real digits, with real kills."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.growing import json_lines

ROOT = Path(__file__).resolve().parents[2]
PRELAUNCH = str(ROOT / "jobs" / "prelaunch.sh")
MNIST = ROOT.parent / "shared" / "mnist"
TWO_BY_TWO = ("--nodes=2", "--ntasks-per-node=2")

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def record(job: Any) -> dict[str, Any]:
    """The run record."""
    return json.loads((job.run_dir / "run.json").read_text())


@pytest.mark.skipif(
    not MNIST.is_dir(), reason="no full MNIST beside the checkout (../shared/mnist)"
)
def test_full_mnist_on_two_nodes(job: Any) -> None:
    """One epoch of all 60,000 digits on 2 nodes x 2 ranks: above 97.5 % on the 10,000 held out."""
    # A larger batch than the default: four ranks on two cores wait for each other at each step.
    options = ("--epochs", "1", "--global-batch-size", "256", "--lr", "2e-3")
    done = job(*TWO_BY_TWO, PRELAUNCH, "--data-dir", str(MNIST), *options)
    assert done.end(timeout_s=280) == ("COMPLETED", 0, 0), done.log
    summary = record(done)["summary"]
    assert summary["outcome"] == "finished"
    assert summary["test_accuracy"] > 0.975
    assert summary["world_size"] == 4
    for node in ("node1", "node2"):
        text = (done.directory / "out" / f"slurm-{done.id}.{node}.gutil").read_text()
        assert f"host: {node}" in text
    assert done.all_gone()


def test_scancel_leaves_a_checkpoint(job: Any) -> None:
    """scancel: all ranks agree on a step, write a checkpoint, and end with 75; the run goes on."""
    endless = ("--epochs", "9999", "--log-every", "5")
    run = job(*TWO_BY_TWO, PRELAUNCH, "--model", "mlp", *endless, DDP_RUN_NAME="carried")
    run.cluster.until(lambda: bool(json_lines(run.run_dir / "metrics.jsonl")), 90, "it trains")
    run.cancel()
    state, code, _ = run.end()
    assert (state, code) == ("CANCELLED", 75), run.log
    assert run.all_gone()
    assert record(run)["summary"]["outcome"] == "stopped"
    stopped_at = record(run)["summary"]["steps"]
    assert (run.run_dir / "checkpoints" / f"step-{stopped_at}").is_dir()
    again = job(
        *TWO_BY_TWO,
        PRELAUNCH,
        "--model",
        "mlp",
        "--max-steps",
        str(stopped_at + 7),
        "--resume",
        "auto",
        DDP_RUN_NAME="carried",
    )
    assert again.end() == ("COMPLETED", 0, 0), again.log
    assert record(run)["summary"]["steps"] == stopped_at + 7
    assert [attempt["attempt"] for attempt in record(run)["attempts"]] == [1, 2]


def test_wrong_options_start_nothing(job: Any) -> None:
    """An unknown option ends the job at once with 64, and nothing is written."""
    run = job(*TWO_BY_TWO, PRELAUNCH, "--lerning-rate", "1")
    assert run.end() == ("FAILED", 64, 0)
    assert "--lerning-rate" in run.log
    assert "Traceback" not in run.log
    assert not run.run_dir.exists()


def test_the_demo_in_slurm(cluster: Any, tmp_path: Path) -> None:
    """Where a controller answers, the demo submits, follows, and ends with the report."""
    done = cluster.run(
        [ROOT / "examples" / "demo.sh"], env={"DDP_OUT": str(tmp_path / "out")}, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FINISHED" in done.stdout
    assert "host CPU %" in done.stdout  # the report's table
    assert "run.json" in done.stdout
    (summary,) = (
        json.loads(path.read_text())["summary"] for path in tmp_path.glob("out/slurm-*/run.json")
    )
    assert summary["test_accuracy"] > 0.95
    assert summary["world_size"] == 2


def test_the_demo_ends_as_its_job_does(cluster: Any, tmp_path: Path) -> None:
    """Wrong input, told once, and a job that is killed are no success."""
    env = {"DDP_OUT": str(tmp_path / "out")}
    wrong = cluster.run([ROOT / "examples" / "demo.sh", "--nonesuch"], env=env, timeout=120)
    assert wrong.returncode == 64, wrong.stdout + wrong.stderr
    assert "--nonesuch" in wrong.stdout
