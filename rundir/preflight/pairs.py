"""Which pairs of nodes are measured next, until each bad node stands alone. Pure.

First all nodes in pairs. A node of a fast pair is good; the others are suspects, each of which is
measured with a good node. A node is bad if no pair of it was fast and two were slow, one of those
with a good node: one slow measurement may be the other's fault, or chance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

_SLOW_PAIRS = 2
_MAX_PARTNERS = 64
"""Of a node while no pair is fast: of thousands of nodes nearly all must be bad by then."""
_FEW = 3
"""So few nodes have one pair in the first round, which nothing can be compared with: all pairs."""


class Measured(NamedTuple):
    """An all-reduce between two nodes."""

    first: str
    second: str
    gbit_per_s: float | None
    """On the bus; None: it failed, or took too long."""


class Conclusion(NamedTuple):
    """What is known of the nodes, each in the order that was given."""

    good: list[str]
    bad: list[str]
    undecided: list[str]
    """Nodes without a fast pair that no measurement tells from their partners."""
    slow: list[Measured]
    reference_gbit_per_s: float | None
    """What a pair is compared with: the median of the faster half; None: every pair failed."""


def conclude(nodes: Sequence[str], measured: Sequence[Measured], ratio: float) -> Conclusion:
    """Tell good nodes from bad ones.

    Args:
        nodes: the job's.
        measured: every pair so far.
        ratio: a pair is slow below this share of the reference.

    """
    reference = _reference(measured)
    slow = [one for one in measured if not _is_fast(one, reference, ratio)]
    good = {n for one in measured if _is_fast(one, reference, ratio) for n in one[:2]}
    tried = _partners(slow)
    bad = {n for n in tried if n not in good and len(tried[n]) >= _SLOW_PAIRS and tried[n] & good}
    return Conclusion(
        [node for node in nodes if node in good],
        [node for node in nodes if node in bad],
        [node for node in nodes if node not in good | bad],
        slow,
        reference,
    )


def next_round(
    nodes: Sequence[str], measured: Sequence[Measured], ratio: float
) -> list[tuple[str, str]]:
    """Pick the pairs that are measured next, at the same time; none: all is known that can be."""
    found = conclude(nodes, measured, ratio)
    if found.good and (len(nodes) > _FEW or not _among_suspects(nodes, measured)):
        return _with_good(nodes, found, measured)
    return _among_suspects(nodes, measured)


def _reference(measured: Sequence[Measured]) -> float | None:
    """The median of the faster half, which is sound while half of the pairs are."""
    import statistics  # noqa: PLC0415 -- slow to import, and most jobs have no pairs

    speeds = sorted(one.gbit_per_s for one in measured if one.gbit_per_s is not None)
    return statistics.median(speeds[len(speeds) // 2 :]) if speeds else None


def _is_fast(one: Measured, reference: float | None, ratio: float) -> bool:
    if one.gbit_per_s is None or reference is None:
        return False
    return one.gbit_per_s >= ratio * reference


def _partners(measured: Sequence[Measured]) -> dict[str, set[str]]:
    """With which nodes each was measured."""
    found: dict[str, set[str]] = {}
    for one in measured:
        found.setdefault(one.first, set()).add(one.second)
        found.setdefault(one.second, set()).add(one.first)
    return found


def _with_good(
    nodes: Sequence[str], found: Conclusion, measured: Sequence[Measured]
) -> list[tuple[str, str]]:
    """Each suspect with the nearest good node that it was not measured with."""
    at = {node: index for index, node in enumerate(nodes)}
    free = list(found.good)
    partners = _partners(measured)
    pairs = []
    for suspect in found.undecided:
        left = [node for node in free if node not in partners.get(suspect, ())]
        if left:
            partner = min(left, key=lambda node: abs(at[node] - at[suspect]))
            free.remove(partner)
            pairs.append((suspect, partner))
    return pairs


def _among_suspects(nodes: Sequence[str], measured: Sequence[Measured]) -> list[tuple[str, str]]:
    """Every node with the one whose number differs by `step` in binary: each pair comes up once."""
    known = {frozenset(one[:2]) for one in measured}
    num_nodes = len(nodes)
    for step in range(1, min(1 << max(num_nodes - 1, 0).bit_length(), _MAX_PARTNERS + 1)):
        numbers = [(at, at ^ step) for at in range(num_nodes) if at < at ^ step < num_nodes]
        pairs = [(nodes[one], nodes[two]) for one, two in numbers]
        if any(frozenset(pair) not in known for pair in pairs):
            return pairs
    return []
