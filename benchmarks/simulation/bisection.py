"""The preflight's bisection, by its pure functions: planted nodes are found."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, NamedTuple

from rundir.preflight import limits, pairs
from rundir.preflight.pairs import Measured

if TYPE_CHECKING:
    from collections.abc import Collection


class Bisection(NamedTuple):
    """How bad nodes were found."""

    num_rounds: int
    num_pairs: int
    bad: list[str]
    cpu_s: float
    """Of the supervisor: what to measure next, and the conclusion."""


def bisect(num_nodes: int, bad: Collection[int]) -> Bisection:
    """Find the nodes of these numbers, any pair with one of which is slow."""
    nodes = [f"sim{node:04}" for node in range(num_nodes)]
    planted = {nodes[number] for number in bad}
    noise = random.Random(1)  # noqa: S311 -- the same each time
    ratio = limits.limit_of(limits.TABLE, "pair_gbit_per_s")
    measured: list[Measured] = []
    num_rounds = 0
    began_s = time.process_time()
    while todo := pairs.next_round(nodes, measured, ratio):
        num_rounds += 1
        for pair in todo:
            speed = noise.uniform(0.1, 0.3) if planted & {*pair} else noise.uniform(0.9, 1)
            measured.append(Measured(*pair, gbit_per_s=400 * speed))
    found = pairs.conclude(nodes, measured, ratio)
    cpu_s = time.process_time() - began_s
    return Bisection(num_rounds, len(measured), found.bad, cpu_s)
