"""An elastic run on a virtual cluster of its own: a node leaves, and is taken back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import own_cluster, patient
from tests.growing import json_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Job

ROOT = Path(__file__).resolve().parents[2]
PRELAUNCH = str(ROOT / "jobs" / "prelaunch.sh")
THREE = ("--nodes=3", "--ntasks-per-node=1", "--no-kill")
# Its steps take 20 ms asleep: the nodes share few cores.
TRAINER = ("--workload", "fault_workload:Breakable", "--global-batch-size", "48")
OFTEN = ("--checkpoint-every", "20", "--log-every", "5")
# Runs for ever in its first start; in the later ones it can use one rank only.
PROGRAM = "((DDP_ATTEMPT > 1)) || sleep 600; if ((WORLD_SIZE == 1)); then exit 0; fi; exit 64"

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


@pytest.fixture(scope="module")
def own(cluster_at: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A cluster whose nodes may be killed, and come back before Slurm gives them up."""
    extra = patient(tmp_path_factory.mktemp("slurm"))
    yield from own_cluster(cluster_at, "el", 95, nodes=3, EXTRA=extra)


def test_fewer_nodes_until_the_run_can_use_them(own: Any, job_on: Callable[..., Job]) -> None:
    """64 on fewer nodes (a batch that does not divide) costs a node, and no restart."""
    settings = {"DDP_ELASTIC": "1:3", "DDP_MAX_RESTARTS": "1"}
    job = job_on(own, *THREE, PRELAUNCH, "--", "bash", "-c", PROGRAM, **settings)
    job.wait_for("rank_up", 3)
    job.wait_for("monitor_up", 3)
    assert own.script("kill", "el3").returncode == 0
    job.wait_for("decision", 3)
    assert own.script("heal", "el3").returncode == 0  # for whom Slurm waits
    assert job.end(120) == ("COMPLETED", 0, 0), job.log
    nodes = [event["nodes"] for event in job.events("start")]
    assert nodes == [["el1", "el2", "el3"], ["el1", "el2"], ["el1"]]
    decisions = [event["decision"] for event in job.events("decision")]
    assert decisions == ["restart", "restart", "finish"]
    assert "it cannot use 2 nodes: it starts again on 1 node" in job.log


def steps(job: Job) -> list[dict[str, Any]]:
    """The metrics so far."""
    return json_lines(job.run_dir / "metrics.jsonl")


def test_a_run_takes_its_node_back(own: Any, job_on: Callable[..., Job], tmp_path: Path) -> None:
    """A lost node: on with two; powered on again: a checkpoint, and on with three, to the end."""
    own.up("3")
    options = (*TRAINER, *OFTEN, "--max-steps", "1200")
    settings = {"DDP_ELASTIC": "2:3", "DDP_MAX_RESTARTS": "1", "OMP_NUM_THREADS": "1"}
    workload = {"PYTHONPATH": str(ROOT / "tests" / "faults"), "FAULT_DIR": str(tmp_path)}
    job = job_on(own, *THREE, PRELAUNCH, *options, **settings, **workload)
    job.wait_for("checkpoint", 1, timeout_s=240)
    assert own.script("kill", "el2").returncode == 0
    job.wait_for("first_step", 2, timeout_s=240)
    assert own.script("heal", "el2").returncode == 0
    job.wait_for("first_step", 3, timeout_s=240)
    assert job.end(240) == ("COMPLETED", 0, 0)
    assert [event["node"] for event in job.events("lost_node")] == ["el2"]
    assert [event["node"] for event in job.events("node_back")] == ["el2"]
    nodes = [event["nodes"] for event in job.events("start")]
    assert nodes == [["el1", "el2", "el3"], ["el1", "el3"], ["el1", "el2", "el3"]]
    decisions = job.events("decision")
    assert [event["decision"] for event in decisions] == ["restart", "restart", "finish"]
    assert decisions[1]["cause"] == "more nodes"
    assert "el2 is back: it goes on on 3 nodes from step" in job.log
    # The second start stopped with a checkpoint of its last step: none was done twice for it.
    record = json.loads((job.run_dir / "run.json").read_text())
    assert record["attempts"][1]["steps_lost"] == 0
    assert record["attempts"][1]["failure_class"] == "stopped"
    assert job.events("resume")[2]["step"] > job.events("resume")[1]["step"]
    assert steps(job)[-1]["step"] == 1200
    assert job.all_gone()
