"""A bad node of a job on a virtual cluster of its own: a spare one, then a requeue, then memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jobs.backends.scontrol import path_field
from rundir import nodes
from rundir.events import read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Job

ROOT = Path(__file__).resolve().parents[2]
PRELAUNCH = str(ROOT / "jobs" / "prelaunch.sh")
TEXT = "GPU 0: XID 79, the GPU has fallen off the bus"
REPORT = f"""
import os
from rundir import channel, events
node, attempt = os.environ["DDP_NODE"], int(os.environ["DDP_ATTEMPT"])
deliver = channel.reporter(os.environ["DDP_RUN_DIR"], node)
log = events.EventLog(deliver, "monitor", attempt, node)
log.write("gpu_fault", node=node, gpu=0, kind="xid", text="{TEXT}")
"""
# Rank 1 crashes in the first two starts, after what its node's monitor would report; with WORD
# empty it crashes without a word.
PROGRAM = (
    "bash",
    "-c",
    (
        "if ((DDP_ATTEMPT > 2)); then exit 0; fi; if ((RANK != 1)); then exec sleep 600; fi;"
        f' [[ -z $WORD ]] || {sys.executable} -c "$WORD"; kill -SEGV $$'
    ),
)
SETTINGS = {
    "DDP_MAX_RESTARTS": "5",
    "DDP_MAX_IDLE_RESTARTS": "9",
    "DDP_SPARE_NODES": "1",
    "PYTHONPATH": str(ROOT),
}

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


@pytest.fixture(scope="module")
def own(cluster_at: Callable[..., Any]) -> Iterator[Any]:
    """A cluster of four nodes."""
    own = cluster_at(
        {
            "DDP_CLUSTER_DIR": "/var/tmp/ddp-cluster-bad",
            "DDP_CLUSTER_PREFIX": "bn",
            "DDP_CLUSTER_SUBNET": "10.213.97",
        }
    )
    own.up("4")
    yield own
    assert own.script("down").returncode == 0


def comment(own: Any, job: Job) -> str:
    """The comment that Slurm has of a job."""
    return path_field(own.run(["scontrol", "show", "job", str(job.id)]).stdout, "Comment")


def test_spare_nodes_are_used_up(own: Any, job_on: Callable[..., Job]) -> None:
    """Then the job is requeued without the bad ones, its comment says why, the next job knows."""
    told = {"DDP_ON_BAD_NODE": 'echo "told: $DDP_BAD_NODE, $DDP_BAD_NODE_REASON"; exit 3'}
    asked = ("--nodes=4", "--ntasks-per-node=1", "--comment=project=x")
    asked += ("--open-mode=append",)  # else a requeue begins the log anew
    job = job_on(own, *asked, PRELAUNCH, "--", *PROGRAM, WORD=REPORT, **SETTINGS, **told)
    decisions = job.wait_for("decision", 2, timeout_s=90)
    assert [one["decision"] for one in decisions] == ["restart", "requeue"], job.log
    assert [one["nodes"] for one in job.events("start")] == [
        ["bn1", "bn2", "bn3"],
        ["bn1", "bn3", "bn4"],
    ]
    bad = [(one["node"], one["reason"], one["source"]) for one in job.events("bad_node")]
    assert bad == [(node, TEXT, "hardware") for node in ("bn2", "bn3")]
    own.until(lambda: "ddp: " in comment(own, job), 60, "the comment")
    assert own.job(job.id)["ExcNodeList"] in ("bn2,bn3", "bn[2-3]")
    assert comment(own, job).startswith(f"project=x; ddp: node bn2 is bad: {TEXT}; node bn3 is")
    own.run(["scancel", str(job.id)])
    assert "no spare node is left: job" in job.log
    for node in ("bn2", "bn3"):
        assert f"told: {node}, {TEXT}" in job.log
        assert f"DDP_ON_BAD_NODE must end with code 0 for {node}; found code 3" in job.log
    lines, num_damaged = read((job.run_dir.parent / "nodes.jsonl").read_bytes())
    assert num_damaged == 0
    assert [(one["node"], one["job"]) for one in lines] == [
        ("bn2", str(job.id)),
        ("bn3", str(job.id)),
    ]


def test_the_next_job_keeps_them_spare(
    own: Any, job_on: Callable[..., Job], tmp_path: Path
) -> None:
    """A node found bad before stands last; where there is no spare one left, a line warns."""
    (tmp_path / "out").mkdir()
    bad = [nodes.BadNode(node, TEXT, "hardware") for node in ("bn1", "bn2")]
    path = tmp_path / "out" / "nodes.jsonl"
    nodes.append(str(path), bad, job="1", now_s=4e9, for_s=3600)
    out = {"DDP_OUT": str(tmp_path / "out")}
    asked = ("--nodelist=bn1,bn2,bn3", "--nodes=3", "--ntasks-per-node=1")
    job = job_on(own, *asked, PRELAUNCH, "--", *PROGRAM, WORD="", **SETTINGS, **out)
    job.wait_for("start", 3, timeout_s=90)
    assert job.end(60) == ("COMPLETED", 0, 0), job.log
    assert [one["nodes"] for one in job.events("start")] == [["bn1", "bn3"]] * 2 + [["bn1", "bn2"]]
    assert "node bn2 was found bad by job 1" in job.log
    assert "until 2096-10-02T08:06:40.000Z: it stays spare" in job.log
    assert "warning: node bn1 was found bad by job 1" in job.log
    (left,) = job.events("bad_node")
    assert (left["node"], left["source"], left["rank"]) == ("bn3", "repeated", 1)
    assert "blamed twice in a row: rank 1 was killed by SIGSEGV, then" in left["reason"]
