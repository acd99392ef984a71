"""A lost node that is back: a run that has fewer goes on on more; else it is spare."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from jobs.loop import Loop
from jobs.supervisor.decide import choose_nodes
from jobs.supervisor.elastic import Returns
from tests.jobs.backend import now

if TYPE_CHECKING:
    from pathlib import Path


class Run:
    """A step on two nodes of three that the job has, of which `lost` are lost."""

    def __init__(self, tmp_path: Path, most: int, lost: tuple[str, ...]) -> None:
        self.back: set[str] = set()
        self.asked: list[str] = []
        self.events: list[tuple[str, str]] = []
        self.num_stops = 0
        self.loop = Loop()
        step: Any = SimpleNamespace(num_nodes=2, ask_for_checkpoint=self._stop)
        shared = now(tmp_path, self, ["n0", "n1"], min_nodes=2, num_nodes_wanted=most, lost=lost)
        shared.loop, shared.journal, shared.bad, shared.refused = self.loop, self, (), frozenset()
        shared.settings.number = lambda _: 0.01
        self.returns = Returns(shared, step)

    reports = SimpleNamespace(has_trained=True)

    def is_back(self, node: str) -> bool:
        """What the backend says."""
        self.asked.append(node)
        return node in self.back

    def write(self, event: str, *, node: str) -> None:
        """What the journal takes."""
        self.events.append((event, node))

    def _stop(self) -> None:
        self.num_stops += 1


def test_a_run_that_has_all_its_nodes_keeps_it_as_spare(tmp_path: Path) -> None:
    """No rank is asked to stop, and the node is asked for no more; another one still is."""
    run = Run(tmp_path, 2, ("n1", "n2"))
    run.back = {"n2"}
    assert run.loop.run(lambda: run.returns.spare, 10)
    assert run.returns.spare == ("n2",)
    assert run.events == [("node_back", "n2")]
    del run.asked[:]
    assert run.loop.run(lambda: len(run.asked) > 3, 10)
    assert set(run.asked) == {"n1"}
    run.back = {"n1"}
    assert run.loop.run(lambda: len(run.returns.spare) == 2, 10)
    assert (run.num_stops, run.returns.found) == (0, ())


def test_a_run_that_has_fewer_goes_on_on_more(tmp_path: Path) -> None:
    """Its ranks are asked to stop with a checkpoint, once."""
    run = Run(tmp_path, 3, ("n2",))
    run.back = {"n2"}
    assert run.loop.run(lambda: run.returns.found, 10)
    assert (run.num_stops, run.returns.spare) == (1, ())
    assert run.events == [("node_back", "n2")]


@pytest.mark.parametrize(
    ("there", "current", "chosen"),
    [
        (["n0", "n1", "n2"], ["n0", "n2"], ["n0", "n2"]),  # n1 is back, and spare
        (["n0", "n1"], ["n0", "n2"], ["n0", "n1"]),  # n2 is lost
        (["n0", "n1", "n2"], ["n2"], ["n0", "n2"]),  # rank 0's node is the first in their order
    ],
)
def test_ranks_stay_where_they_are(there: list[str], current: list[str], chosen: list[str]) -> None:
    """So that those who wait for a restart, on the same nodes, are of use."""
    assert choose_nodes(there, current, 2) == chosen
