"""Nodes that a job should not use, as whoever found them reports it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BadNode:
    """A node, why it is bad in one line, and what found that, such as `preflight`."""

    node: str
    reason: str
    source: str
