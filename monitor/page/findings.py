"""What the page tells on top: the findings of `diagnose`, each with the time it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monitor.diagnosis.diagnose import diagnose
from monitor.diagnosis.findings import span
from monitor.diagnosis.findings_text import folded, place, places

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitor.diagnosis.findings import Finding
    from monitor.logs.series import Run

_MAX_FINDINGS = 100


def told(run: Run, axis: dict[str, Any]) -> list[dict[str, Any]]:
    """Give what is wrong with a run, worst first, for `page/main.js`; what is alike is one.

    Args:
        run: with the columns that `diagnose` looks at.
        axis: the page's, by which times are told.

    """
    return [_of_group(run, group, axis) for group in folded(diagnose(run))[:_MAX_FINDINGS]]


def _of_group(run: Run, group: Sequence[Finding], axis: dict[str, Any]) -> dict[str, Any]:
    first = group[0]
    worst = f"worst, {place(first)}: " if len(group) > 1 else ""
    return {
        "rule": first.rule,
        "severity": first.severity,
        "where": places(run, group),
        "evidence": worst + first.evidence,
        "suggestion": first.suggestion,
        "time": _time(group, axis),
    }


def _time(group: Sequence[Finding], axis: dict[str, Any]) -> list[float] | None:
    """Give when it began and ended, in seconds after the axis begins; None if not on it."""
    times = span(group)
    if times is None:
        return None
    begin_s, end_s = (round(time_s - axis["begin"], 3) for time_s in times)
    is_on_it = -axis["bin"] <= begin_s and end_s <= axis["bin"] * (axis["bins"] + 1)
    return [begin_s, end_s] if is_on_it else None
