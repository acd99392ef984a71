"""The node of the batch script itself dies: the next start tells it, if Slurm knows."""

from __future__ import annotations

import json
import socket
import time
from typing import TYPE_CHECKING

import pytest

from jobs.backends.slurm import Slurm
from jobs.supervisor.attempts import end_of_script
from jobs.supervisor.history import History, Unreported
from tests.jobs.backend import Fake

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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


class Told(Slurm):
    """A Slurm that has this to say of a node."""

    info = ""

    def node_info(self, node: str) -> str:
        """What it says."""
        return self.node_infos([node])[node]

    def node_infos(self, nodes: Sequence[str]) -> dict[str, str]:
        """What it says of each of these."""
        assert [*nodes] == ["n1"]
        return {"n1": self.info}


def told(
    monkeypatch: pytest.MonkeyPatch, *events: dict[str, object], info: str, here: str = "n3"
) -> tuple[Unreported | None, str | None]:
    """What a second start finds out of the first, if Slurm has this to say of the node."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    head = {"time": "2026-11-21T08:00:00.000Z"}
    data = "".join(json.dumps(head | event) + "\n" for event in events).encode()
    slurm = Told({})
    slurm.info = info
    start = History(data).unreported(2)
    backend = Fake()
    if here != "n1":
        monkeypatch.setattr(backend, "lost_of", slurm.lost_of)
    return start, end_of_script(start, backend, slurm)


@pytest.mark.slow
def test_a_node_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told of the start that it ended, not of the one that tells it."""
    start, how = told(monkeypatch, START, info=node(1, LONG_AGO))
    assert start is not None
    assert (start.attempt, start.node) == (1, "n1")
    assert how == "it does not answer on port 1; Slurm's state of it is DOWN*"


@pytest.mark.parametrize("here", ["n1", "n3"])
def test_a_node_that_is_back(monkeypatch: pytest.MonkeyPatch, slurmd: int, here: str) -> None:
    """Also where the job has got it again."""
    _, how = told(monkeypatch, START, info=node(slurmd, SINCE), here=here)
    assert how == f"it was started anew at {SINCE}"


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
    monkeypatch: pytest.MonkeyPatch, slurmd: int, events: tuple[dict[str, object], ...], booted: str
) -> None:
    """Nobody is blamed without evidence."""
    assert told(monkeypatch, *events, info=node(slurmd, booted))[1] is None
