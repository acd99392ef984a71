"""The node of the batch script itself dies: the next start tells it, if Slurm knows."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import pytest

from tests.jobs.library import ask

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

START = {"event": "start", "attempt": 1, "host": "n1", "nodes": ["n1", "n2"]}
SIGNAL = {"event": "signal", "attempt": 1, "signal": "TERM"}
END = {"event": "end", "attempt": 1, "code": 75}

LONG_AGO, SINCE = "2026-11-01T00:00:00", "2026-11-21T09:00:00"


@pytest.fixture
def slurmd() -> Iterator[int]:
    """A port that answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def node(port: int, booted: str) -> str:
    """What Slurm says of a node."""
    return f"NodeName=n1 NodeAddr=127.0.0.1 Port={port} State=DOWN* BootTime={booted}"


def told(tmp_path: Path, *events: dict[str, object], info: str, here: str = "n3") -> list[dict]:
    """What a second start adds to the events, if Slurm has this to say of the node."""
    path = tmp_path / "events.jsonl"
    head = {"time": "2026-11-21T08:00:00.000Z"}
    path.write_text("".join(json.dumps(head | event) + "\n" for event in events))
    slurm = 'scontrol() { echo "$INFO"; }; timeout() { shift 3; "$@"; };'
    done = ask(
        ("nodes", "requeue", "attempt"),
        f"{slurm} DDP_ATTEMPT=2; attempts_tell_lost; echo $DDP_ATTEMPT",
        TZ="UTC",
        DDP_RUN_DIR=str(tmp_path),
        DDP_NODE=here,
        PLACE="bare-srun",
        INFO=info,
    )
    assert done.stdout == "2\n"
    new = [json.loads(line) for line in path.read_text().splitlines()][len(events) :]
    assert ("start 1 ended with node n1" in done.stderr) == bool(new)
    return new


def test_a_node_that_does_not_answer(tmp_path: Path) -> None:
    """It is told of the start that it ended, not of the one that tells it."""
    (event,) = told(tmp_path, START, info=node(1, LONG_AGO))
    assert (event["event"], event["attempt"], event["node"]) == ("lost_node", 1, "n1")
    assert event["how"] == "it does not answer on port 1; Slurm's state of it is DOWN*"
    assert event["afterwards"] is True


@pytest.mark.parametrize("here", ["n1", "n3"])
def test_a_node_that_is_back(tmp_path: Path, slurmd: int, here: str) -> None:
    """Also where the job has got it again."""
    (event,) = told(tmp_path, START, info=node(slurmd, SINCE), here=here)
    assert event["how"] == f"it was started anew at {SINCE}"


@pytest.mark.parametrize(
    ("events", "booted"),
    [
        ((START,), LONG_AGO),
        ((START,), "None"),
        ((START,), ""),
        ((START, END), SINCE),
        ((START, SIGNAL), SINCE),
        ((), SINCE),
    ],
    ids=["well", "unknown", "untold", "it told its end", "a signal ended it", "nothing had begun"],
)
def test_else_nothing_is_told(
    tmp_path: Path, slurmd: int, events: tuple[dict[str, object], ...], booted: str
) -> None:
    """Nobody is blamed without evidence."""
    assert told(tmp_path, *events, info=node(slurmd, booted)) == []
