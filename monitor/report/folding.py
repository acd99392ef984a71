"""Hundreds of nodes on one screen: what is alike becomes one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitor.logs.stats import Gpu, Node

_TOLERANCES = (2, 5, 10, 20, 50, 101)
"""How far apart the busy shares of nodes in one line may lie, in percentage points."""

OUTLIER_PCT = 10
"""A GPU this much less busy than the middle one stands out, in percentage points."""


def fold(nodes: Sequence[Node], max_lines: int) -> list[list[Node]]:
    """Put nodes, sorted worst first, into groups that are alike: as narrow as fits the lines."""
    groups: list[list[Node]] = []
    for tolerance in _TOLERANCES:
        groups = _bands(nodes, tolerance)
        if len(groups) <= max_lines:
            return groups
    return [*groups[: max_lines - 1], [node for group in groups[max_lines - 1 :] for node in group]]


def _bands(nodes: Sequence[Node], tolerance: float) -> list[list[Node]]:
    bands: dict[tuple[int, bool, bool], list[list[Node]]] = {}
    groups: list[list[Node]] = []
    for node in nodes:
        busy = node.use.busy_pct
        mine = bands.setdefault((len(node.gpus), node.use.num_silent > 0, busy is None), [])
        if mine and (busy or 0) - (mine[-1][0].use.busy_pct or 0) <= tolerance:
            mine[-1].append(node)
        else:
            mine.append([node])
            groups.append(mine[-1])
    return groups


def outliers(gpus: Sequence[Gpu]) -> list[Gpu]:
    """Choose, of GPUs sorted worst first, those that are silent or far less busy than most."""
    busy = sorted(g.use.busy_pct for g in gpus if g.use.busy_pct is not None)
    limit = busy[len(busy) // 2] - OUTLIER_PCT if busy else 0
    return [
        gpu
        for gpu in gpus
        if gpu.use.num_silent or (gpu.use.busy_pct is not None and gpu.use.busy_pct < limit)
    ]
