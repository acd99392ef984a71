"""Rules on what the run and the driver report themselves; `why` and the page's time axis have it.

They are of a live view only: afterwards `why` says how a run ended.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from monitor.analysis import events
from monitor.analysis.findings import Finding
from monitor.analysis.rules import EVENTS, Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monitor.analysis.findings import Severity
    from monitor.analysis.thresholds import Thresholds
    from monitor.logs.series import Run

_SEE_WHY = "`python -m monitor why` has the evidence"

REPORTS: dict[str, tuple[Severity, str]] = {
    "verdict": ("error", "{text}"),
    "lost_node": ("error", "node {node} is lost: {how}"),
    "failure": ("error", "rank {rank}: {error}"),
    "non_finite": ("warning", "a loss or gradient at step {step} is not finite: {action}"),
    "checkpoint_failed": ("error", "no checkpoint at step {step}: {reason}"),
    "signal": ("warning", "signal {signal} was received"),
}
"""The run's events that need a person, by name."""

_BY_DRIVER: dict[str, Severity] = {"lost": "error", "slow": "warning", "back": "hint"}


def _reported(run: Run, at: Thresholds) -> Iterator[Finding]:  # noqa: ARG001 - a rule's signature
    for event in run.events:
        name = str(event.get("event"))
        if name in REPORTS:
            severity, text = REPORTS[name]
            yield Finding(
                rule="reported",
                severity=severity,
                host=None,
                gpu=None,
                begin_s=None,
                end_s=None,
                evidence=text.format_map(_Known(event)),
                suggestion=_SEE_WHY,
                about=f"{name} {event.get('time')}",
            )


class _Known(dict[str, object]):
    """What an event has; `?` for what it lacks."""

    def __missing__(self, key: str) -> str:
        return "?"


def _driver(run: Run, at: Thresholds) -> Iterator[Finding]:  # noqa: ARG001 - a rule's signature
    for placed in run.marks:
        mark = placed.mark
        if mark.kind in _BY_DRIVER:
            what, text = events.described(mark)
            time_s = None if math.isnan(mark.time_s) else mark.time_s
            yield Finding(
                rule="driver",
                severity=_BY_DRIVER[mark.kind],
                host=placed.host,
                gpu=mark.gpu,
                begin_s=time_s,
                end_s=time_s,
                evidence=f"{what}: {text}" if text else what,
                suggestion="see dmesg of the node",
                job=placed.job,
                about=mark.kind,
            )


RULES = (
    Rule(
        name="reported",
        meaning="live: the run reports a failure, a verdict, a lost node, a signal",
        check=_reported,
        scope="live",
        stays=True,
    ),
    Rule(
        name="driver",
        meaning="live: the driver lost a GPU, answers slowly, or answers again",
        check=_driver,
        needs=(EVENTS,),
        scope="live",
        stays=True,
    ),
)
