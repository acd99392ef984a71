"""What is wrong with a run, by rules: a pure function from what was recorded to findings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from monitor.diagnosis import (
    rules_health,
    rules_memory,
    rules_peers,
    rules_throttle,
    rules_watch,
    rules_work,
)
from monitor.diagnosis.findings import worst_first
from monitor.diagnosis.rules import told_by_node
from monitor.diagnosis.thresholds import Thresholds

if TYPE_CHECKING:
    from monitor.diagnosis.findings import Finding
    from monitor.diagnosis.rules import Rule
    from monitor.logs.series import Run

RULES: tuple[Rule, ...] = (
    rules_health.LOST,
    rules_health.XID,
    rules_health.ECC,
    rules_work.HUNG,
    rules_health.REMAP,
    rules_throttle.THERMAL,
    rules_throttle.POWER,
    rules_work.IDLE,
    rules_work.STARVED,
    rules_peers.STRAGGLER,
    rules_peers.CLOCK,
    rules_peers.PCIE,
    rules_memory.HOST_MEMORY,
    rules_memory.SHM,
    rules_memory.DISK,
    rules_memory.STRAY,
    rules_watch.GAP,
    rules_memory.MEMORY,
    rules_peers.UNBALANCED,
)
"""In the order in which they are told."""

COLUMNS = frozenset(name for rule in RULES for name in rule.columns)
"""All that is looked at."""


def diagnose(run: Run, thresholds: Thresholds | None = None) -> list[Finding]:
    """Look at a run by all rules; what they find, worst first."""
    at = thresholds or Thresholds()
    with np.errstate(invalid="ignore", divide="ignore"):
        found = [finding for rule in RULES for finding in rule.check(run, at)]
    return worst_first(found, [rule.name for rule in RULES])


@dataclass(frozen=True, slots=True)
class NotLooked:
    """A rule that could not look at some nodes, and what they do not tell."""

    rule: str
    lacks: str
    hosts: tuple[str, ...]
    """Empty: that is so on all nodes."""


def not_looked(run: Run) -> list[NotLooked]:
    """Name the rules that could not look, and where, in the order of the rules."""
    nodes = told_by_node(run)
    found: dict[tuple[str, str], list[str]] = {}
    for rule in RULES:
        for (_, host), told in nodes.items():
            lack = rule.lacks(told)
            if lack is not None:
                found.setdefault((rule.name, lack), []).append(host)
    return [
        NotLooked(name, lack, () if len(hosts) == len(nodes) else tuple(hosts))
        for (name, lack), hosts in found.items()
    ]
