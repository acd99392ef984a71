"""Nodes that a job should not use, and the file in which one job remembers them for the next.

`nodes.jsonl` in DDP_OUT is appended to as events.jsonl is: one line a node, by one write under a
lock, so that several jobs may. A line counts until its time; the newest of a node counts.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from rundir import events

if TYPE_CHECKING:
    from collections.abc import Sequence

_TIME = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d(\.\d{3})?)?Z)?")
"""As events have it, or with less of it."""
_MAX_REASON = 300


class BadNode(NamedTuple):
    """A node, why it is bad in one line, and what found that, such as `preflight`."""

    node: str
    reason: str
    source: str


class Remembered(NamedTuple):
    """A node that a job before this one found to be bad, or that a user wants to avoid."""

    node: str
    reason: str = "no reason given"
    job: str = ""
    """Empty where the line was added by hand."""
    until: str = "9999-12-31"
    """UTC."""


def append(path: str, bad: Sequence[BadNode], *, job: str, now_s: float, for_s: float) -> None:
    """Remember nodes for so many seconds. Raises OSError."""
    data = b""
    for one in bad:
        line = {
            "time": events.time_text(now_s),
            "node": one.node,
            "reason": " ".join(one.reason.split())[:_MAX_REASON],
            "source": one.source,
            "job": job,
            "until": events.time_text(now_s + for_s),
        }
        data += events.encode(line)
    events.append(path, data)


def remembered(data: bytes, now_s: float) -> dict[str, Remembered]:
    """Read which nodes are still to be avoided, by name; a damaged line is skipped."""
    now, found = events.time_text(now_s), {}
    for line in data.split(b"\n"):
        one = _read(line)
        if one is not None:
            found[one.node] = one
    return {node: one for node, one in found.items() if one.until > now}


def _read(line: bytes) -> Remembered | None:
    values = events.parse(line) or {}
    texts = {name: values[name] for name in Remembered._fields if name in values}
    if not all(isinstance(text, str) and text.isprintable() for text in texts.values()):
        return None
    if not texts.get("node"):
        return None
    one = Remembered(**texts)
    return one if _TIME.fullmatch(one.until) else None


def spare_last(nodes: Sequence[str], avoided: Sequence[str], num_used: int) -> list[str]:
    """Order a job's nodes so that those to be avoided become spare, as far as there are spares.

    The ones that are used stay in their order, by which Slurm numbers ranks.
    """
    by_choice = sorted(nodes, key=lambda node: node in avoided)
    used, spare = by_choice[:num_used], by_choice[num_used:]
    return [*(node for node in nodes if node in used), *spare]
