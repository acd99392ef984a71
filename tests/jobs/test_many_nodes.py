"""Hundreds of nodes in question at once: one request to the controller, the time of one node."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Any

import pytest

from jobs.backends.slurm import Slurm
from jobs.supervisor.guard import Guard
from tests.jobs.backend import Fake, now

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Scripts

NODES = [f"n{number}" for number in range(300)]
LOST = NODES[100:140]


@pytest.fixture
def slurm(scripts: Scripts) -> Slurm:
    """A Slurm that knows all nodes but the last; port 1 of the lost ones does not answer."""
    scripts.fake(
        "scontrol",
        f"""echo "$*" >>'{scripts.directory}/calls'
        if [[ $* == *"show config"* ]]; then echo "SlurmdPort = 1"; exit; fi
        for node in ${{!#//,/ }}; do
            port="Port=$OPEN"
            if ((${{node#n}} >= 100 && ${{node#n}} < 140)); then port=; fi
            if [[ $node != {NODES[-1]} ]]; then
                echo "NodeName=$node NodeAddr=127.0.0.1 $port State=DOWN"
            fi
        done
        exit 1""",
    )
    return Slurm(scripts.env | {"OPEN": "0"})


@pytest.mark.slow
def test_the_lost_ones_among_many(
    slurm: Slurm, scripts: Scripts, patience: Callable[[float], float]
) -> None:
    """40 that do not answer take as long as one; a name that Slurm does not know does no harm."""
    with socket.create_server(("127.0.0.1", 0), backlog=len(NODES)) as slurmd:
        slurm._client_environ["OPEN"] = str(slurmd.getsockname()[1])  # noqa: SLF001 -- the fake's
        began_s = time.monotonic()
        found = slurm.lost_of(NODES)
    assert time.monotonic() - began_s < patience(5)
    how = "it does not answer on port 1; Slurm's state of it is DOWN"
    assert found == [(node, how) for node in LOST]
    calls = (scripts.directory / "calls").read_text().splitlines()
    assert len(calls) == 2
    assert slurm.lost_of([]) == []
    assert (scripts.directory / "calls").read_text().splitlines() == calls


def test_without_an_answer_nobody_is_lost(scripts: Scripts) -> None:
    """It may be this machine that lost its network."""
    scripts.fake("scontrol", "echo 'slurm_load_node error: Unable to contact'; exit 1")
    assert Slurm(scripts.env).lost_of(NODES) == []


class Now:
    """A loop in which everything is due at once."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []

    def every(self, _period_s: float, call: Callable[[], object]) -> Any:
        """Keep a call."""
        self.calls.append(call)
        return self

    def after(self, _delay_s: float, _call: Callable[[], object]) -> None:
        """Nothing comes later."""

    def in_background(
        self, call: Callable[[], object], then: Callable[[object], object] = bool
    ) -> None:
        """Call both."""
        then(call())

    def cancel(self) -> None:
        """Call no longer."""


class Step:
    """Ranks that are up on three nodes; the journal of what is written, too."""

    left = ()
    failed_s = None
    is_stuck = False

    def __init__(self) -> None:
        self.reports, self.events = self, []  # type: ignore[var-annotated]
        self.up = {0: "n1", 1: "n2", 2: "n3"}
        self.written: list[tuple[str, str]] = []
        self.num_killed = 0

    def lose(self, _node: str, _how: str) -> bool:
        """It cannot go on without a node."""
        return False

    def kill(self) -> None:
        """Count."""
        self.num_killed += 1

    def write(self, event: str, *, node: str, how: str) -> None:
        """Take an event."""
        assert (event, how) == ("lost_node", "no answer")
        self.written.append((event, node))


def test_all_lost_nodes_are_named_and_the_step_ends_once(tmp_path: Path) -> None:
    """A rack without power is one loss and not, one after the other, as many as its nodes."""
    loop, step = Now(), Step()
    backend = Fake(lost_nodes={"n2": "no answer", "n3": "no answer"})
    shared = now(tmp_path, backend, ["n2", "n3"], interval_s=-9, loop=loop, journal=step)
    guard = Guard(shared, step)  # type: ignore[arg-type] # it has what is needed
    for call in 2 * loop.calls:
        call()
    assert step.written == [("lost_node", "n2"), ("lost_node", "n3")]
    assert guard.why == "lost n2, n3"
    assert step.num_killed == 1
