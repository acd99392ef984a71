"""The preflight on the virtual cluster: good nodes, one that hangs, and one with bad memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults.gpus import WITH_GPUS, build_driver
from tests.growing import json_lines

if TYPE_CHECKING:
    from collections.abc import Callable

PRELAUNCH = str(Path(__file__).resolve().parents[2] / "jobs" / "prelaunch.sh")
TWO = ("--nodes=2", "--ntasks-per-node=2", "--job-name=preflight")
SLACK = "start_s=120,tmp_mib=0,shm_mib=0,run_dir_mib=0"
"""A busy machine is no bad node."""
HANGS_ON_ONE = """\
import os, sys, time
if os.uname().nodename == "node2" and "trainer.preflight" in sys.orig_argv:
    os.register_at_fork(after_in_child=lambda: time.sleep(600))
"""

pytestmark = pytest.mark.slurm


def verdicts(done: Any) -> dict[str, Any]:
    """The reasons why nodes are bad, by node; None: it is not."""
    return {event["node"]: event["reason"] for event in done.events("preflight")}


def test_good_nodes_are_checked_and_then_the_ranks_start(job: Callable[..., Any]) -> None:
    """One line in the job's log, an event a node with all readings, and nothing left behind."""
    limits = f"{SLACK},stage_s=60"
    env = {"DDP_PREFLIGHT": "1", "DDP_PREFLIGHT_LIMITS": limits}
    done = job(*TWO, PRELAUNCH, "--", "bash", "-c", 'echo "I am $RANK of $WORLD_SIZE"', **env)
    assert done.end() == ("COMPLETED", 0, 0)
    assert "prelaunch: preflight: 2 nodes" in done.log
    assert done.log.index("preflight: 2 nodes") < done.log.index("I am 3 of 4")
    assert verdicts(done) == {"node1": None, "node2": None}, done.log
    (first, _second) = done.events("preflight")
    read = {name for name, _value, _what in first["readings"]}
    assert read >= {"torch", "wrong_elements", "cpu_gbit_per_s", "run_dir_unseen", "clock_s"}
    names = [event["event"] for event in done.events()]
    assert names.index("preflight") < names.index("start")
    assert names.count("rank_up") == 4
    assert not (done.run_dir / ".preflight").exists()
    assert done.all_gone()


def test_a_node_that_hangs_is_named_after_its_time_limit(
    job: Callable[..., Any], tmp_path: Path
) -> None:
    """By hand: the table names node and stage, the code is 70, and no rank is started."""
    (tmp_path / "sitecustomize.py").write_text(HANGS_ON_ONE)
    limits = f"{SLACK},stage_s=20"
    env = {"DDP_PREFLIGHT_LIMITS": limits, "PYTHONPATH": str(tmp_path)}
    done = job(*TWO, PRELAUNCH, "--preflight", **env)
    assert done.end()[1] == 70
    assert verdicts(done)["node1"] is None, done.log
    assert "a stage ran into its time limit" in verdicts(done)["node2"]
    assert "bad: node2" in done.log
    assert not done.events("start")
    assert done.all_gone()


def test_a_node_with_bad_memory_leaves_before_the_ranks_start(
    job: Callable[..., Any], tmp_path: Path
) -> None:
    """Rows of its GPU's memory wait to be remapped: the spare node takes its place."""
    nodes = build_driver(tmp_path, ("node1", "node2"))
    (nodes / "node1").write_text("gpus 1\nset remap_pending 0 1\n")
    env = {"DDP_PREFLIGHT": "1", "DDP_PREFLIGHT_LIMITS": f"{SLACK},stage_s=60"}
    env |= {"DDP_SPARE_NODES": "1", "FAULT_DIR": str(tmp_path), **WITH_GPUS}
    words = ("--", "bash", "-c", 'echo "I am $RANK of $WORLD_SIZE on $SLURMD_NODENAME"')
    done = job("--nodes=2", "--ntasks-per-node=1", PRELAUNCH, *words, **env)
    assert done.end() == ("COMPLETED", 0, 0), done.log
    assert verdicts(done)["node2"] is None, done.log
    assert "memory rows to be remapped" in (verdicts(done)["node1"] or ""), done.log
    assert [event["nodes"] for event in done.events("start")] == [["node2"]]
    assert "I am 0 of 1 on node2" in done.log
    (remembered,) = json_lines(done.run_dir.parent / "nodes.jsonl")
    assert remembered["node"] == "node1"
    assert done.all_gone()
