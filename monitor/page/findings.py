"""The page's findings: those of `diagnose`, each with its place on the page's time axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monitor.analysis.engine import evaluate
from monitor.analysis.findings import summaries

if TYPE_CHECKING:
    from monitor.analysis.findings import Summary
    from monitor.logs.series import Run

_MAX_FINDINGS = 100


def rendered(run: Run, axis: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what is wrong with a run, worst first, for `page/main.js`."""
    found = summaries(run, evaluate(run))[:_MAX_FINDINGS]
    return [
        {
            "rule": one.rule,
            "severity": one.severity,
            "where": one.where,
            "evidence": one.whole_evidence,
            "suggestion": one.suggestion,
            "time": _time(one, axis),
        }
        for one in found
    ]


def _time(one: Summary, axis: dict[str, Any]) -> list[float] | None:
    """Return when it began and ended, in seconds after the axis begins; None if not on it."""
    if one.span_s is None:
        return None
    begin_s, end_s = (round(time_s - axis["begin"], 3) for time_s in one.span_s)
    is_on_it = -axis["bin"] <= begin_s and end_s <= axis["bin"] * (axis["bins"] + 1)
    return [begin_s, end_s] if is_on_it else None
