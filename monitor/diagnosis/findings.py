"""What a rule found: where, when, the evidence, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Severity = Literal["error", "warning", "hint"]

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "hint")
"""Worst first: something is broken, costs much, could be better."""

STATUS: Mapping[Severity, int] = {"error": 4, "warning": 3, "hint": 0}
"""Exit codes. Not 1, with which Python ends on an error of ours, nor 2, a shell's own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that a rule found.

    `host` is None for what concerns the whole job, `gpu` for what concerns the node or the job.
    Times count from 1970 as the log's samples do; None where the log has no times.
    """

    rule: str
    severity: Severity
    host: str | None
    gpu: int | None
    begin_s: float | None
    end_s: float | None
    evidence: str
    suggestion: str
    job: str | None = None
    about: str = ""
    """What tells findings of a rule apart, such as an XID's number: only those alike are folded."""
    weight: float = 0.0
    """How bad it is beside others of the same rule; of no meaning elsewhere."""


def span(found: Sequence[Finding]) -> tuple[float, float] | None:
    """Give when the first of some began and the last ended; None where nobody knows."""
    begins = [one.begin_s for one in found if one.begin_s is not None]
    ends = [one.end_s for one in found if one.end_s is not None]
    return (min(begins), max(ends)) if begins and ends else None


def status(found: Iterable[Finding]) -> int:
    """Tell a script in a number: 0 nothing worse than a hint, 3 a warning, 4 an error."""
    return max((STATUS[finding.severity] for finding in found), default=0)


def worst_first(found: Iterable[Finding], rules: Iterable[str]) -> list[Finding]:
    """Sort by severity, then in the order of the rules, then by weight, then by place."""
    order = {name: number for number, name in enumerate(rules)}

    def key(one: Finding) -> tuple[int, int, float, str, str, int]:
        place = (one.job or "", one.host or "", -1 if one.gpu is None else one.gpu)
        return (SEVERITIES.index(one.severity), order[one.rule], -one.weight, *place)

    return sorted(found, key=key)
