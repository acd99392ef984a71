"""A bad node leaves a job in place: what the job says, what the next one finds, who is told."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from monitor.runs import render, why
from rundir.events import read

if TYPE_CHECKING:
    from conftest import Result, Scripts

ROOT = Path(__file__).resolve().parents[2]
TEXT = "GPU 0: XID 79, the GPU has fallen off the bus"
REPORT = f"""
import os
from rundir import channel, events
node = os.environ["DDP_NODE"]
log = events.EventLog(channel.reporter(os.environ["DDP_RUN_DIR"], node), "monitor", 1, node)
log.write("gpu_fault", node=node, gpu=0, kind="xid", text="{TEXT}")
"""
"""What the node's monitor would do."""
PROGRAM = ("bash", "-c", f'"{sys.executable}" -c "$REPORT" && exit 7')


def broken(scripts: Scripts, *options: str, **env: str) -> Result:
    """A run whose GPU breaks."""
    known = {"REPORT": REPORT, "PYTHONPATH": str(ROOT), "DDP_NPROC_PER_NODE": "1"}
    known |= {"DDP_MAX_RESTARTS": "3", "DDP_OUT": str(scripts.directory / "out")}
    return scripts.run("prelaunch.sh", *options, "--", *PROGRAM, **known | env)


def remembered(scripts: Scripts) -> list[dict[str, object]]:
    """The lines of nodes.jsonl."""
    path = scripts.directory / "out" / "nodes.jsonl"
    return read(path.read_bytes())[0] if path.exists() else []


def test_a_broken_gpu_and_no_other_node(scripts: Scripts) -> None:
    """Nothing can take its place and nothing requeues: one line has the node and why."""
    result = broken(scripts)
    (bad,) = result.of("bad_node")
    assert result.code == 7
    assert (bad["reason"], bad["source"], bad["rank"]) == (TEXT, "hardware", None)
    last = result.err.splitlines()[-1]
    assert f"node {bad['node']} is bad: {TEXT}; to go on: start again with" in last
    assert [one["decision"] for one in result.of("decision")] == ["fail"]
    (line,) = remembered(scripts)
    assert (line["node"], line["reason"], line["until"]) == (bad["node"], TEXT, bad["until"])


@pytest.mark.slow
def test_the_next_job_is_warned(scripts: Scripts) -> None:
    """Also by a dry run; it starts all the same, as there is no other node."""
    result = broken(scripts)
    node = result.of("bad_node")[0]["node"]
    with (scripts.directory / "out" / "nodes.jsonl").open("ab") as file:
        file.write(b"\xff\x00 torn")
    for options in (("--dry-run",), ()):
        err = broken(scripts, *options, DDP_RUN_NAME="next").err
        assert f"warning: node {node} was found bad by job local-" in err
        assert f"({TEXT}), until 20" in err
        assert f"starting on it; sbatch --exclude={node} avoids it" in err
    (scripts.directory / "out" / "nodes.jsonl").unlink()
    assert "was found bad" not in broken(scripts, "--dry-run").err


def test_switched_off(scripts: Scripts) -> None:
    """DDP_BAD_NODES=0: a failure as any other, and nothing is remembered or read."""
    result = broken(scripts, DDP_BAD_NODES="0", DDP_MAX_RESTARTS="0")
    assert result.of("bad_node") == []
    assert "no restart: DDP_MAX_RESTARTS=0" in result.err
    assert remembered(scripts) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "line"),
    [
        (
            (
                "[[ $DDP_BAD_NODE == $(uname -n) && $DDP_BAD_NODE_UNTIL == 20*Z ]]"
                ' && echo "told $DDP_BAD_NODE_SOURCE: $DDP_BAD_NODE_REASON"'
            ),
            f"told hardware: {TEXT}",
        ),
        ("exit 3", "found code 3; try it by hand; the job does not depend on it"),
        ("nonesuch", "found code 127; try it by hand; the job does not depend on it"),
    ],
)
def test_who_is_told(scripts: Scripts, command: str, line: str) -> None:
    """The administrators' command runs once; a failure of it is a line and nothing else."""
    result = broken(scripts, DDP_ON_BAD_NODE=command, DDP_BAD_NODE_HOURS="0")
    assert result.code == 7
    assert result.err.count(line) == 1
    assert remembered(scripts) == [], "for no hours"


def test_nodes_cannot_be_written(scripts: Scripts) -> None:
    """A line says so; the job is none the worse."""
    (scripts.directory / "out" / "nodes.jsonl").mkdir(parents=True)
    result = broken(scripts)
    assert result.code == 7
    assert "nodes.jsonl cannot be read (Is a directory): no node is avoided by it" in result.err
    assert "nodes.jsonl (Is a directory); later jobs do not learn of it" in result.err


def test_why_names_the_node(scripts: Scripts) -> None:
    """`monitor why` and run.json have what broke, and its class."""
    found = why.gather(str(broken(scripts).run_dir))
    text = "\n".join(render.lines(found, width=100))
    assert f"left the job: {TEXT}" in " ".join(text.split())
    assert "[hardware; code 7]" in text
    (bad,) = found["attempt"]["bad_nodes"]
    assert (bad["reason"], bad["source"]) == (TEXT, "hardware")
