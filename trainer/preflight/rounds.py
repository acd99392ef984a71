"""Pairs of nodes measure their link, round after round; rank 0 names them, by a store it serves.

Every process of these is a node's own, and has its GPUs measure in processes of theirs.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from rundir.preflight import pairs
from rundir.preflight.limits import limit_of
from rundir.preflight.pairs import Measured

if TYPE_CHECKING:
    from collections.abc import Callable

    from rundir.preflight.limits import Check

_POLL_S = 0.02
_LEAVE_S = 2.0
LATE_S = 5.0
"""How much longer than a stage the result of a pair may take to arrive."""

Store = Any  # torch's has no types
Measure = Any
"""(name of the group, first rank, size of the group) -> Gbit/s, or None."""


class Member(NamedTuple):
    """A node, as it takes part."""

    rank: int
    node: str
    num_processes: int
    """0: it is not fit to be measured."""


def take_part(
    store: Store, own: Member, world_size: int, table: tuple[Check, ...], measure: Measure
) -> list[Measured]:
    """Measure until rank 0 reports that all is known; on rank 0: what was measured."""
    store.set(f"member/{own.rank}", json.dumps(own))
    leader = Leader(store, world_size, table) if own.rank == 0 else None
    if leader is None and not own.num_processes:
        return []
    for number in itertools.count():
        if leader is not None:
            leader.begin(number)
        paired = json.loads(store.get(f"round/{number}"))
        for members in paired:
            first, second = (Member(*member) for member in members)
            if own in (first, second):
                name = f"pair/{number}/{first.rank}"
                offset = first.num_processes if own == second else 0
                speed = measure(name, offset, first.num_processes + second.num_processes)
                if own == first:
                    store.set(name, json.dumps(speed))
        if not paired:
            store.set(f"left/{own.rank}", "")
            break
        if leader is not None:
            leader.end(number)
    return leader.close() if leader is not None else []


class Leader:
    """Rank 0: knows who takes part, picks the pairs, and collects what they measured."""

    def __init__(self, store: Store, world_size: int, table: tuple[Check, ...]) -> None:
        """Wait for every node, but no longer than one may take to start."""
        self._store, self.measured = store, list[Measured]()
        self._ratio = limit_of(table, "pair_gbit_per_s")
        self._limit_s = limit_of(table, "stage_s") + LATE_S
        keys = [f"member/{rank}" for rank in range(world_size)]
        limit_s = limit_of(table, "start_s") + limit_of(table, "stage_s")
        self._wait(lambda: store.check(keys), limit_s)
        there = [Member(*json.loads(store.get(key))) for key in keys if store.check([key])]
        self._members = {one.node: one for one in there if one.num_processes}
        self._pairs: list[tuple[Member, Member]] = []

    def begin(self, number: int) -> None:
        """Name the pairs of this round; none, if all is known."""
        wanted = list(self._members) if math.isfinite(self._ratio) else []  # else: left out
        picked = pairs.next_round(wanted, self.measured, self._ratio)
        self._pairs = [(self._members[first], self._members[second]) for first, second in picked]
        self._store.set(f"round/{number}", json.dumps(self._pairs))

    def end(self, number: int) -> None:
        """Collect the results."""
        names = [f"pair/{number}/{first.rank}" for first, _ in self._pairs]
        self._wait(lambda: self._store.check(names), self._limit_s)
        for name, (first, second) in zip(names, self._pairs, strict=True):
            speed = json.loads(self._store.get(name)) if self._store.check([name]) else None
            self.measured.append(Measured(first.node, second.node, speed))

    def close(self) -> list[Measured]:
        """Let the others leave first, as this process serves the store; what was measured."""
        keys = [f"left/{member.rank}" for member in self._members.values()]
        self._wait(lambda: self._store.check(keys), _LEAVE_S)
        return self.measured

    @staticmethod
    def _wait(is_there: Callable[[], bool], limit_s: float) -> None:
        deadline_s = time.monotonic() + limit_s
        while not is_there() and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
