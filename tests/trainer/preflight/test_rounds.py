"""Nodes that measure in pairs, each a thread here: one bad node stands alone, a silent one too."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from rundir.preflight import limits
from rundir.preflight.pairs import Measured, conclude
from trainer.preflight.rounds import Member, take_part


class Store:
    """torch's store, of one process: values that are waited for."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.news = threading.Condition()

    def set(self, key: str, value: str) -> None:
        """Set a value."""
        with self.news:
            self.values[key] = value.encode()
            self.news.notify_all()

    def get(self, key: str) -> bytes:
        """Wait for a value."""
        with self.news:
            if not self.news.wait_for(lambda: key in self.values, 30):
                raise RuntimeError(key)
            return self.values[key]

    def check(self, keys: list[str]) -> bool:
        """Whether all are there."""
        return all(key in self.values for key in keys)


def together(members: list[Member], measure: Any, limit: str = "start_s=1") -> list[Measured]:
    """Let all take part; what rank 0 knows afterwards."""
    store, found = Store(), list[list[Measured]]()
    table = limits.parse(f"stage_s=1,{limit}")
    world_size = 1 + max(member.rank for member in members)

    def run(member: Member) -> None:
        found.append(take_part(store, member, world_size, table, measure(member)))

    threads = [threading.Thread(target=run, args=(member,), daemon=True) for member in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == len(members), "each has come to its end"
    return next((one for one in found if one), [])


def speed(*bad: str) -> Callable[[Member], Callable[[str, int, int], float | None]]:
    """Measure as if these nodes were bad; the partner's numbers are those of the pair."""
    slow: set[str] = set()

    def of(member: Member) -> Callable[[str, int, int], float | None]:
        def measure(name: str, _offset: int, _world_size: int) -> float | None:
            if member.node in bad:
                slow.add(name)
            time.sleep(0.1)
            return 1.0 if name in slow else 100.0

        return measure

    return of


NODES = [f"n{at}" for at in range(5)]


def test_one_bad_node_stands_alone() -> None:
    """After three rounds at most, and the others are good."""
    members = [Member(at, node, 1) for at, node in enumerate(NODES)]
    found = conclude(NODES, together(members, speed("n3"), "start_s=20"), 0.5)
    assert (found.bad, len(found.good)) == (["n3"], 4)


def test_no_pair_is_measured_where_the_check_is_left_out() -> None:
    """Without a limit every pair would look slow, and all would be measured with all."""
    members = [Member(at, node, 1) for at, node in enumerate(NODES)]
    assert together(members, speed(), "start_s=20,pair_gbit_per_s=off") == []


@pytest.mark.slow
def test_a_node_that_is_unfit_or_silent_is_not_waited_for() -> None:
    """It takes no part; the others measure."""
    members = [Member(0, "n0", 8), Member(1, "n1", 0), Member(2, "n2", 8), Member(4, "n4", 8)]
    measured = together(members, speed())
    assert {node for pair in measured for node in pair[:2]} == {"n0", "n2", "n4"}


def test_rank_0_leads_though_its_own_node_is_unfit() -> None:
    """The others need it."""
    members = [Member(0, "n0", 0), Member(1, "n1", 2), Member(2, "n2", 2)]
    assert together(members, speed(), "start_s=20") == [Measured("n1", "n2", 100.0)]


def test_the_ranks_of_a_pair_are_numbered_through() -> None:
    """The second node's come after the first's."""
    seen: dict[str, tuple[int, int]] = {}

    def measure(member: Member) -> Callable[[str, int, int], float]:
        def of(_name: str, offset: int, world_size: int) -> float:
            seen[member.node] = (offset, world_size)
            return 1.0

        return of

    together([Member(0, "n0", 8), Member(1, "n1", 4)], measure, "start_s=20")
    assert seen == {"n0": (0, 12), "n1": (8, 12)}
