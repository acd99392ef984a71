"""A node that dies under a job, on a virtual cluster of its own: the others go on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import own_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Job

PRELAUNCH = str(Path(__file__).resolve().parents[2] / "jobs" / "prelaunch.sh")
# Runs for ever in its first start; in the later ones it finishes, or cannot use so few ranks.
PROGRAM = (
    "bash",
    "-c",
    (
        'echo "attempt $DDP_ATTEMPT: $RANK of $WORLD_SIZE at $MASTER_ADDR, $DDP_NUM_NODES nodes";'
        " ((DDP_ATTEMPT > 1)) || sleep 600;"
        ' if [[ $NEEDS == "$WORLD_SIZE" ]]; then exit 0; fi; exit 64'
    ),
)

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


@pytest.fixture(scope="module")
def own(cluster_at: Callable[..., Any]) -> Iterator[Any]:
    """A cluster whose nodes may be killed."""
    yield from own_cluster(cluster_at, "tl", 96, nodes=3)


@pytest.fixture
def submit(own: Any, job_on: Callable[..., Job]) -> Iterator[Callable[..., Job]]:
    """Submits the program above when every node is well."""
    own.until(lambda: {own.node_state(n) for n in own.nodes} == {"idle"}, 90, "idle nodes")

    def submit(*args: str, needs: int, **env: str) -> Job:
        job = job_on(own, *args, PRELAUNCH, "--", *PROGRAM, NEEDS=str(needs), **env)
        num_nodes = int(args[0].rpartition("=")[2]) - int(env.get("DDP_SPARE_NODES", "0"))
        job.wait_for("monitor_up", num_nodes)
        job.wait_for("rank_up", num_nodes)
        return job

    yield submit
    for node in own.nodes:
        own.script("heal", node)


def lose(own: Any, job: Job, node: str) -> None:
    """Pulls the node's power, and waits until the job has noticed."""
    assert own.script("kill", node).returncode == 0
    (event,) = job.wait_for("lost_node", 1, timeout_s=60)
    assert event["node"] == node


def test_a_spare_node_takes_the_place(own: Any, submit: Callable[..., Job]) -> None:
    """With DDP_SPARE_NODES the run keeps its number of ranks."""
    settings = {"DDP_NO_KILL": "1", "DDP_MAX_RESTARTS": "3", "DDP_SPARE_NODES": "1"}
    job = submit("--nodes=3", "--ntasks-per-node=1", "--no-kill", needs=2, **settings)
    assert job.events("start")[0]["nodes"] == ["tl1", "tl2"]
    lose(own, job, "tl2")
    decisions = job.wait_for("decision", 2, timeout_s=60)
    assert [event["decision"] for event in decisions] == ["restart", "finish"]
    assert job.events("start")[1]["nodes"] == ["tl1", "tl3"]
    assert "[1] attempt 2: 1 of 2 at tl1, 2 nodes" in job.log
    assert "node tl2 is lost with rank 1" in job.log
    assert "restart 1 of 3 on 2 nodes" in job.log
    assert job.end()[0] == "COMPLETED"


def test_fewer_ranks_than_the_run_can_have(own: Any, submit: Callable[..., Job]) -> None:
    """64 on fewer nodes (a batch that does not divide) is nobody's mistake: it is requeued."""
    settings = {"DDP_NO_KILL": "1", "DDP_MAX_RESTARTS": "3"}
    job = submit("--nodes=3", "--ntasks-per-node=1", "--no-kill", needs=3, **settings)
    lose(own, job, "tl3")
    decisions = job.wait_for("decision", 2, timeout_s=60)
    assert [event["decision"] for event in decisions] == ["restart", "requeue"]
    assert decisions[1]["exclude"] == "tl3"
    waiting = {"PENDING", "COMPLETING"}  # there is no third node without tl3
    own.until(lambda: own.job(job.id)["JobState"] in waiting, 30, "it waits")
    own.until(lambda: own.job(job.id)["ExcNodeList"] == "tl3", 30, "it may not have that node")
