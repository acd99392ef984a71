"""What a rule found, and findings that are alike put together, as every renderer shows them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from monitor.words import host_list, natural
from rundir.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from monitor.logs.series import Run

Severity = Literal["error", "warning", "hint"]

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "hint")
"""Worst first: something is broken, costs much, could be better."""

STATUS: Mapping[Severity, int] = {"error": 4, "warning": 3, "hint": 0}
"""Exit codes. Not 1, with which Python ends on an error of ours, nor 2, a shell's own."""

_MAX_NAMES = 60  # characters
_MAX_SORTS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that a rule found.

    `host` is None for the whole job, `gpu` for the node or the job.
    Times count from 1970 as the log's samples do; None where the log has no times.
    """

    rule: str = ""
    """The engine fills it in."""
    severity: Severity
    host: str | None = None
    gpu: int | None = None
    begin_s: float | None = None
    end_s: float | None = None
    evidence: str
    suggestion: str
    job: str | None = None
    about: str = ""
    """Separates findings of one rule, such as an XID's number: only equal ones are folded."""
    weight: float = 0.0
    """How bad it is beside others of the same rule; of no meaning elsewhere."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """Findings that differ in place and numbers only, as one; what a renderer shows."""

    severity: Severity
    rule: str
    where: str
    """Such as `gpu[001-016], all GPUs`; empty: nothing to name."""
    evidence: str
    """Of the worst."""
    worst: str = ""
    """The place of that one, where there are several."""
    suggestion: str = ""
    span_s: tuple[float, float] | None = None
    """When the first began and the last ended; None where no log has times."""

    @property
    def whole_evidence(self) -> str:
        """The evidence, with the place of the worst where there are several."""
        return f"worst, {self.worst}: {self.evidence}" if self.worst else self.evidence


def status(found: Iterable[Finding]) -> int:
    """Return the exit code: 0 nothing worse than a hint, 3 a warning, 4 an error."""
    return max((STATUS[finding.severity] for finding in found), default=0)


def worst_first(found: Iterable[Finding], rules: Iterable[str]) -> list[Finding]:
    """Sort by severity, then in the order of the rules, then by weight, then by place."""
    order = {name: number for number, name in enumerate(rules)}

    def key(one: Finding) -> tuple[int, int, float, str, str, int]:
        place = (one.job or "", one.host or "", -1 if one.gpu is None else one.gpu)
        return (SEVERITIES.index(one.severity), order[one.rule], -one.weight, *place)

    return sorted(found, key=key)


def summaries(run: Run, found: Iterable[Finding]) -> list[Summary]:
    """Fold findings that differ in place and numbers only; each in the order it came."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for one in found:
        alike = (one.severity, one.rule, one.about, one.suggestion, one.job)
        groups.setdefault(alike, []).append(one)
    return [_summary(run, group) for group in groups.values()]


def by_severity(found: Iterable[Summary]) -> str:
    """Count findings: `2 errors, 1 warning`; empty for none."""
    counts = Counter(one.severity for one in found)
    return ", ".join(counted(counts[name], name) for name in SEVERITIES if counts[name])


def _summary(run: Run, group: Sequence[Finding]) -> Summary:
    worst = group[0]
    return Summary(
        severity=worst.severity,
        rule=worst.rule,
        where=_places(run, group),
        evidence=worst.evidence,
        worst=_place(worst) if len(group) > 1 else "",
        suggestion=worst.suggestion,
        span_s=_span_s(group),
    )


def _span_s(found: Sequence[Finding]) -> tuple[float, float] | None:
    begins = [one.begin_s for one in found if one.begin_s is not None]
    ends = [one.end_s for one in found if one.end_s is not None]
    return (min(begins), max(ends)) if begins and ends else None


def _place(one: Finding) -> str:
    """Name where a finding is: `gpu001 GPU 3`."""
    return f"{one.host or 'the job'}" + ("" if one.gpu is None else f" GPU {one.gpu}")


def _places(run: Run, group: Sequence[Finding]) -> str:
    """Name where findings are: `gpu[001-016], all GPUs`."""
    by_host: dict[str, set[int]] = {}
    for one in group:
        found = by_host.setdefault(one.host or "", set())
        found |= set() if one.gpu is None else {one.gpu}
    existing: dict[str, set[int]] = {host: set() for host in by_host}
    for gpu in run.gpus:
        if gpu.gpu is not None and gpu.host in existing and group[0].job in (None, gpu.job):
            existing[gpu.host].add(gpu.gpu)
    alike: dict[str, list[str]] = {}
    for host, found in by_host.items():
        alike.setdefault(_gpus(found, existing[host]), []).append(host)
    places = [f"{_hosts(hosts)}{gpus}" for gpus, hosts in alike.items()]
    num_more = sum(len(hosts) for hosts in list(alike.values())[_MAX_SORTS:])
    more = [f"and on {counted(num_more, 'more node')}"] if num_more else []
    job = group[0].job
    which = f"job {job}, " if job and len({gpu.job for gpu in run.gpus}) > 1 else ""
    return which + "; ".join([*places[:_MAX_SORTS], *more])


def _gpus(found: set[int], existing: set[int]) -> str:
    if not found:
        return ""
    if found == existing and len(found) > 1:
        return ", all GPUs"
    indices = host_list(str(index) for index in found)
    return f" GPU {indices.strip('[]')}"


def _hosts(hosts: Sequence[str]) -> str:
    names = host_list(hosts)
    if len(names) > _MAX_NAMES and len(hosts) > 1:
        first, *_, last = sorted(hosts, key=natural)
        return f"{counted(len(hosts), 'node')} of {first} to {last}"
    return names or "the job"
