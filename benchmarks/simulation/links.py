"""The preflight's bisection among simulated nodes: real rounds, and a store that counts.

`trainer.preflight.rounds` is what nodes run; only the links' speeds and torch's store are made up.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from rundir.preflight import limits
from trainer.preflight import rounds

if TYPE_CHECKING:
    from rundir.preflight.pairs import Measured

_LIMIT_S = 300
_FAST, _SLOW = 400.0, 40.0
"""Gbit/s."""


def bad_nodes(num_nodes: int) -> tuple[int, int, int]:
    """Number the nodes with slow links: two of them may be measured with each other."""
    return num_nodes // 5, num_nodes // 2, num_nodes // 2 + 1


class Links(NamedTuple):
    """What was measured between all nodes."""

    measured: list[Measured]
    num_rounds: int
    num_store_calls: int
    """Values that nodes wrote to rank 0's store, and read from it."""


class _Store:
    """In place of torch's: each key is written once, and waited for."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._written: defaultdict[str, threading.Event] = defaultdict(threading.Event)
        self._lock = threading.Lock()
        self.num_calls = 0

    def set(self, key: str, value: str) -> None:
        with self._lock:
            self._values[key] = value
            self.num_calls += 1
            self._written[key].set()

    def get(self, key: str) -> str:
        with self._lock:
            self.num_calls += 1
            written = self._written[key]
        assert written.wait(_LIMIT_S), key
        return self._values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)

    def pair(self, name: str) -> frozenset[str]:
        """Name the nodes that measure their link under a name of theirs."""
        _, number, rank = name.split("/")
        pairs = json.loads(self._values[f"round/{number}"])
        return next(
            frozenset((first[1], second[1])) for first, second in pairs if str(first[0]) == rank
        )

    @property
    def num_rounds(self) -> int:
        """Of measurements: the last one tells that there is nothing to measure."""
        return sum(key.startswith("round/") for key in self._values) - 1


def measure_all(nodes: list[str]) -> Links:
    """Let all nodes take part, a thread each; any link of a bad one is slow."""
    store = _Store()
    found: list[Measured] = []
    bad = {nodes[number] for number in bad_nodes(len(nodes))}

    def measure(name: str, _rank: int, _size: int) -> float:
        return _SLOW if store.pair(name) & bad else _FAST

    def take_part(rank: int, node: str) -> None:
        own = rounds.Member(rank, node, 8)
        found.extend(rounds.take_part(store, own, len(nodes), limits.TABLE, measure))

    threads = [threading.Thread(target=take_part, args=one) for one in enumerate(nodes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Links(found, store.num_rounds, store.num_calls)
