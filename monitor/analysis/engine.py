"""All rules, and what they find: a pure function from what was recorded to findings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from monitor.analysis import (
    rules_faults,
    rules_logs,
    rules_memory,
    rules_peers,
    rules_throttling,
    rules_work,
)
from monitor.analysis.findings import worst_first
from monitor.analysis.rules import Window, recorded_by_node
from monitor.analysis.thresholds import Thresholds
from monitor.logs.series import by_unit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from monitor.analysis.findings import Finding
    from monitor.analysis.rules import Rule
    from monitor.logs.series import Run

_SUBJECTS = (
    rules_faults,
    rules_throttling,
    rules_work,
    rules_peers,
    rules_memory,
    rules_logs,
)
"""In the order in which their findings are reported."""

_NOW_S = 300.0
"""In a live view a finding that ended earlier is over."""


def rules() -> tuple[Rule, ...]:
    """Return all rules, in the order in which their findings are reported."""
    return tuple(rule for subject in _SUBJECTS for rule in subject.RULES)


def columns() -> frozenset[str]:
    """Return all columns that rules may read."""
    return frozenset(name for rule in rules() for name in rule.columns)


def evaluate(run: Run, thresholds: Thresholds | None = None) -> list[Finding]:
    """Evaluate all rules, or those for a live view's window; return the worst finding first.

    A GPU that got another index, as after a requeue, counts as one GPU, with its last index.
    """
    at = thresholds or Thresholds()
    is_live = isinstance(run, Window)
    if not is_live:
        run = replace(run, gpus=tuple(by_unit(run.gpus)))
    chosen = [rule for rule in rules() if rule.scope != ("whole run" if is_live else "live")]
    found: list[Finding] = []
    with np.errstate(invalid="ignore", divide="ignore"):
        for rule in chosen:
            of_rule = [replace(one, rule=rule.name) for one in rule.check(run, at)]
            found += _lasting(run, of_rule) if is_live and not rule.stays else of_rule
    return worst_first(found, [rule.name for rule in chosen])


def _lasting(run: Run, found: Iterable[Finding]) -> Iterable[Finding]:
    """Leave out findings that ended some time before their GPU's newest sample."""
    newest_s: dict[object, float] = {}
    for series in run.gpus:
        if series.num_samples:
            newest_s[series.host, series.gpu] = newest_s[series.host, None] = series.time_s[-1]
    for one in found:
        now_s = newest_s.get((one.host, one.gpu))
        if one.end_s is None or now_s is None or one.end_s >= now_s - _NOW_S:
            yield one


@dataclass(frozen=True, slots=True)
class Skipped:
    """A rule that could not be evaluated on some nodes, and the reading that they lack."""

    rule: str
    lacks: str
    hosts: tuple[str, ...]
    """Empty: all nodes."""


def skipped(run: Run) -> list[Skipped]:
    """Name the rules that could not be evaluated, and where, in the order of the rules."""
    nodes = recorded_by_node(run)
    found: dict[tuple[str, str], list[str]] = {}
    for rule in rules():
        for (_, host), recorded in nodes.items() if rule.scope != "live" else ():
            lack = rule.lacks(recorded)
            if lack is not None:
                found.setdefault((rule.name, lack), []).append(host)
    return [
        Skipped(name, lack, () if len(hosts) == len(nodes) else tuple(hosts))
        for (name, lack), hosts in found.items()
    ]
