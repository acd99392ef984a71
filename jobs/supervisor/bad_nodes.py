"""Which nodes an attempt shows to be bad: pure, of its failure, its events and what came before.

A node is bad at once if its hardware failed (rundir/xids.py has the errors that mean that). It is
bad if two attempts in a row blame it and nothing else explains their end: a hang, a crash without
an error of the program's, or slowness. An error of the program's own is never its node's fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rundir import codes
from rundir.failure import attempt as read
from rundir.nodes import BadNode
from rundir.text import counted, listed

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from rundir.events import Event
    from rundir.failure import Failure

HARDWARE, REPEATED = "hardware", "repeated"

_CRASHES = ("SEGV", "BUS", "ILL", "FPE", "KILL")
"""Signals by which a process ends without having chosen to; ABRT is a choice of the program's."""
SLOW_RATIO, SLOW_COST_PCT = 2.0, 20.0
"""A slow rank's node is blamed from this multiple of the median rank's time on, if that costs the
others so much of a step."""


class Blame(NamedTuple):
    """What speaks against one node; alone it proves nothing."""

    node: str
    rank: int | None
    text: str


class Past(NamedTuple):
    """What the attempts of this run before this one leave."""

    blame: Blame | None = None
    """Of the one before it."""
    ranks: frozenset[int | None] = frozenset()
    """Ranks whose node was taken out because it was blamed twice in a row."""


class Found(NamedTuple):
    """What an attempt shows."""

    bad: tuple[BadNode, ...] = ()
    blame: Blame | None = None
    note: str = ""
    """Why a node that is blamed twice in a row is not bad all the same; may be empty."""


def find(
    failure: Failure, events: Sequence[Event], past: Past, *, is_stopped: bool, num_nodes: int
) -> Found:
    """Say what an attempt shows of its nodes.

    Args:
        failure: How it ended.
        events: Its own.
        past: What the attempts before it leave.
        is_stopped: Whether somebody asked the job to stop.
        num_nodes: Of the attempt: on a single one a node's fault looks like a program's.

    """
    has_failed = failure.code not in (codes.FINISHED, codes.STOPPED, codes.USAGE)
    is_own = has_failed and not is_stopped
    hardware = _broken(failure, events) if is_own else {}
    bad = tuple(BadNode(node, reason, HARDWARE) for node, reason in hardware.items())
    lost = [node for node, _ in failure.lost]
    bad = tuple(one for one in bad if one.node not in lost)
    if bad or lost or num_nodes == 1:
        return Found(bad)
    blame = (_hang(failure, events) or _crash(failure, events)) if is_own else None
    blame = blame or _slow(events)
    if blame is None or past.blame is None or past.blame.node != blame.node:
        return Found((), blame)
    if blame.rank in past.ranks:
        who = blame.node if blame.rank is None else f"rank {blame.rank}"
        note = f"{who} fails as on another node, which left for it: no node's fault"
        return Found((), blame, note)
    reason = f"blamed twice in a row: {past.blame.text}, then {blame.text}"
    return Found((BadNode(blame.node, reason, REPEATED),), blame)


def within_limit(
    bad: Sequence[BadNode], before: Collection[str], num_nodes: int
) -> tuple[tuple[BadNode, ...], str]:
    """Keep nodes in the job if more than half of its nodes would leave: a check is broken then.

    Args:
        bad: Nodes that are bad now.
        before: Those that have left the job.
        num_nodes: Of the job, all of them.

    Returns:
        The nodes that leave, and what is to be reported of those that do not.

    """
    new = {one.node: one for one in reversed(bad) if one.node not in before}
    num_bad = len(new) + len(before)
    if not new or num_bad == 1 or 2 * num_bad <= num_nodes:
        return tuple(reversed(new.values())), ""
    reasons = ", ".join(f"{one.node} ({one.reason})" for one in reversed(new.values()))
    share = f"{num_bad} of {counted(num_nodes, 'node')} would have left the job"
    return (), f"{share}, which is taken for no node's fault: going on with {reasons}"


# ---- broken hardware -----------------------------------------------------------------------------


def _broken(failure: Failure, events: Sequence[Event]) -> dict[str, str]:
    """Name the nodes whose hardware failed, and how."""
    found: dict[str, list[str]] = {}
    for event in read.every(events, "gpu_fault"):
        node, text = read.text(event.get("node")), read.text(event.get("text"))
        if node and text and text not in found.setdefault(node, []):
            found[node].append(text)
    reasons = {node: listed(texts, 1) for node, texts in found.items()}
    finding, first = failure.finding, failure.first
    if not reasons and finding.failure_class == HARDWARE and first is not None and first.node:
        if finding.place == "log":
            reasons[first.node] = f"rank {first.rank} reports: {finding.line}"
        elif finding.place == "copies":
            reasons |= _differing(events)
    return reasons


def _differing(events: Sequence[Event]) -> dict[str, str]:
    """Name the node with other weights than the copies have; of two nodes it may be either."""
    nodes = {read.text(event.get("node")) for event in read.every(events, "replica_differs")}
    node = nodes.pop() if len(nodes) == 1 else None
    return {node: "its weights are not those of their copies"} if node else {}


# ---- what alone proves nothing -------------------------------------------------------------------


def _hang(failure: Failure, events: Sequence[Event]) -> Blame | None:
    """Blame the one node whose ranks held up those of the others."""
    verdict = read.first(events, "verdict")
    suspects = verdict.get("suspects")
    if failure.finding.place != "verdict" or not isinstance(suspects, list) or len(suspects) != 1:
        return None
    rank = read.integer(verdict.get("rank"))
    what = "it could not be reached" if verdict.get("kind") == "network" else f"rank {rank} hung"
    return Blame(str(suspects[0]), rank, what)


def _crash(failure: Failure, events: Sequence[Event]) -> Blame | None:
    """Blame the node of a rank that a signal ended before it could report anything, or started."""
    first = failure.first
    if first is None or first.node is None:
        return None
    if failure.finding.place == "start":
        return Blame(first.node, None, "no rank came up on it")
    if failure.finding.place != "signal":
        return None
    if first.signal not in _CRASHES or first.rank in read.reported_errors(events):
        return None
    return Blame(first.node, first.rank, f"rank {first.rank} was killed by SIG{first.signal}")


def _slow(events: Sequence[Event]) -> Blame | None:
    """Blame the one node whose ranks held up every step, by the trainer's summary."""
    summary = read.last(events, "summary").get("summary")
    reported = summary.get("slow_ranks") if isinstance(summary, dict) else None
    slow = [one for one in reported if _is_slow(one)] if isinstance(reported, list) else []
    if len({one.get("node") for one in slow}) != 1 or not read.text(slow[0].get("node")):
        return None
    rank = read.integer(slow[0].get("rank"))
    return Blame(str(slow[0]["node"]), rank, f"rank {rank} took {slow[0]['ratio']} x the median")


def _is_slow(one: object) -> bool:
    if not isinstance(one, dict):
        return False
    ratio, cost_pct = one.get("ratio"), one.get("cost_pct")
    if not isinstance(ratio, (int, float)) or not isinstance(cost_pct, (int, float)):
        return False
    return ratio >= SLOW_RATIO and cost_pct >= SLOW_COST_PCT
