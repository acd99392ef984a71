"""The verdict on every node, from what all nodes report: fit, or bad for a reason. Pure.

A reading is compared with the job's other nodes first. What most nodes share is no node's fault,
unless it shows broken hardware: then it is noted, and no node is left out for it.
"""

from __future__ import annotations

import bisect
import collections
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from rundir.nodes import BadNode
from rundir.preflight import limits, pairs
from rundir.preflight.pairs import Measured
from rundir.text import counted, listed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rundir.events import Event
    from rundir.preflight.limits import Check

SOURCE = "preflight"
REPORT = "preflight_report"
"""The event in which a part reports; the supervisor takes it, and writes a verdict a node."""
_MAX_NAMED = 4

Value = Union[float, str]


class Reading(NamedTuple):
    """What a check of the table read."""

    check: str
    value: Value
    what: str = ""
    """Of which part of the node, such as `GPU 3`; or words, such as an error's."""


class Report(NamedTuple):
    """What one part of the preflight found on a node."""

    node: str
    part: str
    """`monitor` or `trainer`: both report once a node."""
    readings: tuple[Reading, ...]
    measured: tuple[Measured, ...] = ()
    """The all-reduces between pairs of nodes: rank 0's node alone reports them."""

    def to_event(self) -> dict[str, Any]:
        """Return the keys of a `preflight_report` event."""
        return self._asdict()


def from_event(event: Event) -> Report | None:
    """Read a `preflight_report` event; None if it is none, or damaged."""
    try:
        return Report(
            str(event["node"]),
            str(event["part"]),
            tuple(_reading(*one) for one in event["readings"]),
            tuple(_measured(*one) for one in event.get("measured", ())),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _reading(check: str, value: Value, what: str) -> Reading:
    return Reading(str(check), value if isinstance(value, str) else float(value), str(what))


def _measured(first: str, second: str, gbit_per_s: float | None) -> Measured:
    return Measured(str(first), str(second), None if gbit_per_s is None else float(gbit_per_s))


class Finding(NamedTuple):
    """A reading beyond its limit."""

    node: str
    check: Check
    what: str
    found: str
    """With its unit; empty where the meaning says it all."""
    expected: str
    """The limit, in words; empty where any reading is beyond it."""
    is_bad: bool
    """Whether the node is to be left out for it; else it is a note."""

    @property
    def text(self) -> str:
        """Return it in one line."""
        said = ": ".join(filter(None, (self.what, self.check.meaning, self.found)))
        return ", ".join(filter(None, (said, self.expected))) + f" ({self.check.name})"


class Verdict(NamedTuple):
    """What the preflight found on the nodes of a job."""

    findings: tuple[Finding, ...]
    num_nodes: int

    @property
    def bad(self) -> list[BadNode]:
        """The nodes that the job should not use, in the order of the findings."""
        reasons: dict[str, list[str]] = {}
        for one in self.findings:
            if one.is_bad:
                reasons.setdefault(one.node, []).append(one.text)
        return [BadNode(node, _first(texts), SOURCE) for node, texts in reasons.items()]

    def table(self) -> str:
        """Return the findings for people, a line each; empty if there are none."""
        rows = [("node", "suspects", "found", "remedy")]
        rows += [
            (one.node, "note" if not one.is_bad else one.check.suspects, one.text, one.check.remedy)
            for one in self.findings
        ]
        widths = [max(len(row[at]) for row in rows) for at in range(3)]
        lines = (
            "  ".join([*(row[at].ljust(widths[at]) for at in range(3)), row[3]]) for row in rows
        )
        return "\n".join(lines) + "\n" if self.findings else ""


def _first(texts: list[str]) -> str:
    return texts[0] + (f" (and {len(texts) - 1} more)" if len(texts) > 1 else "")


def compose(
    reports: Sequence[Report],
    nodes: Sequence[str],
    table: tuple[Check, ...] = limits.TABLE,
) -> Verdict:
    """Compare every reading.

    Args:
        reports: of all nodes. If none has one of a part, that part could not run here at all.
        nodes: of the job, in their order.
        table: the checks, with the site's limits.

    """
    ours = set(nodes)
    readings = [(r.node, one) for r in reports if r.node in ours for one in r.readings]
    readings += _missing(reports, nodes)
    measured = [pair for report in reports for pair in report.measured]
    findings: list[Finding] = []
    for check in table:
        of_check = [(node, one) for node, one in readings if one.check == check.name]
        if check.name == "pair_gbit_per_s":
            findings += _slow_nodes(check, nodes, measured)
        elif of_check:
            num_read = len({node for node, _ in of_check})
            found = _RULES[check.how](check, of_check)
            findings += _spared(check, found, num_read, is_alone=len(nodes) == 1)
    order = {node: at for at, node in enumerate(nodes)}
    findings.sort(key=lambda one: (not one.is_bad, order[one.node]))
    return Verdict(tuple(findings), len(nodes))


def _missing(reports: Sequence[Report], nodes: Sequence[str]) -> list[tuple[str, Reading]]:
    """Nodes that reported nothing while others did, and parts that others reported."""
    there = {(report.node, report.part) for report in reports}
    parts, seen = sorted({part for _, part in there}), {node for node, _ in there}
    silent = [(node, Reading("missing", 1.0)) for node in nodes if seen and node not in seen]
    return silent + [
        (node, Reading("incomplete", 1.0, part))
        for part in parts
        for node in nodes
        if node in seen and (node, part) not in there
    ]


def _spared(
    check: Check, findings: list[Finding], num_read: int, *, is_alone: bool
) -> list[Finding]:
    """What most of the nodes share that read it is a note, unless hardware is broken."""
    is_shared = not is_alone and 2 * len({one.node for one in findings}) > num_read
    is_note = check.is_note or (is_shared and check.suspects != limits.HARDWARE)
    return [one._replace(is_bad=one.is_bad and not is_note) for one in findings]


# ---- how readings are compared -------------------------------------------------------------------


def _absolute(check: Check, placed: Sequence[tuple[str, Reading]]) -> list[Finding]:
    sign = 1 if check.how == limits.AT_MOST else -1
    is_any = sign * check.limit == 0
    expected = "" if is_any else f"limit: {check.how} {_number(check.limit, check.unit)}"
    return [
        _finding(check, node, one, expected, is_shown=not is_any or one.value != 1)
        for node, one in placed
        if sign * (_float(one) - check.limit) > 0
    ]


def _share(check: Check, placed: Sequence[tuple[str, Reading]]) -> list[Finding]:
    """Compare with the median of the other nodes; on one node, of its other parts."""
    findings = []
    medians = _medians_of_others(placed)
    for (node, one), median in zip(placed, medians):
        if median is not None and _float(one) < check.limit * median:
            least = "" if check.limit == 1 else f"limit: {check.limit:g} of "
            expected = f"{least}{_number(median, check.unit)} of the others"
            findings.append(_finding(check, node, one, expected))
    return findings


def _apart(check: Check, placed: Sequence[tuple[str, Reading]]) -> list[Finding]:
    """Compare with the median of all, one of them: of two nodes, the lower."""
    import statistics  # noqa: PLC0415 -- slow to import, and most jobs have no preflight

    median = statistics.median_low(_float(one) for _, one in placed)
    expected = f"limit: {_number(check.limit, check.unit)} from the others"
    return [
        _finding(check, node, one._replace(value=_float(one) - median), expected)
        for node, one in placed
        if abs(_float(one) - median) > check.limit
    ]


def _same(check: Check, placed: Sequence[tuple[str, Reading]]) -> list[Finding]:
    """Find those that differ from most; where as many have another value, only notes."""
    counts = collections.Counter(_shown(one, check) for _, one in placed)
    most = max(counts, key=lambda value: (counts[value], value))
    is_tied = list(counts.values()).count(counts[most]) > 1
    return [
        _finding(check, node, one, f"{most} on other nodes")._replace(is_bad=not is_tied)
        for node, one in placed
        if _shown(one, check) != most
    ]


_RULES: dict[str, Callable[[Check, Sequence[tuple[str, Reading]]], list[Finding]]] = {
    limits.AT_MOST: _absolute,
    limits.AT_LEAST: _absolute,
    limits.SHARE: _share,
    limits.APART: _apart,
    limits.SAME: _same,
}


def _slow_nodes(check: Check, nodes: Sequence[str], measured: Sequence[Measured]) -> list[Finding]:
    """Nodes whose pairs are slow, each with a pair that shows it; a lone slow pair as a note."""
    found = pairs.conclude(nodes, measured, check.limit)
    reference = found.reference_gbit_per_s
    expected = "as did every pair"
    if reference is not None:
        expected = f"limit: {check.limit:g} of {_number(reference, check.unit)} of fast pairs"
    findings = []
    for node in [*found.bad, *found.undecided]:
        proof = next((one for one in reversed(found.slow) if node in one[:2]), None)
        if proof is None:
            continue
        other = proof.second if proof.first == node else proof.first
        speed = proof.gbit_per_s
        shown = "failed" if speed is None else _number(speed, check.unit)
        is_bad = node in found.bad and not check.is_note
        findings.append(Finding(node, check, f"with {other}", shown, expected, is_bad))
    return findings


def _medians_of_others(placed: Sequence[tuple[str, Reading]]) -> list[float | None]:
    """For each reading the median over the other nodes; of one node alone, over its others."""
    values = sorted(_float(one) for _, one in placed)
    of_node: dict[str, list[float]] = {}
    for node, one in placed:
        of_node.setdefault(node, []).append(_float(one))
    if len(of_node) == 1:
        return [_median_without(values, [_float(one)]) for _, one in placed]
    medians = {node: _median_without(values, own) for node, own in of_node.items()}
    return [medians[node] for node, _ in placed]


def _median_without(ordered: list[float], own: list[float]) -> float | None:
    """Return the median of sorted values but for some of them; None if none is left."""
    left = ordered.copy()
    for value in own:
        del left[bisect.bisect_left(left, value)]
    middle = len(left) // 2
    return (left[middle] + left[-1 - middle]) / 2 if left else None


def _finding(
    check: Check, node: str, one: Reading, expected: str, *, is_shown: bool = True
) -> Finding:
    found = _shown(one, check) if is_shown else ""
    return Finding(node, check, one.what, found, expected, is_bad=True)


def _float(one: Reading) -> float:
    return float(one.value) if not isinstance(one.value, str) else 0.0


def _shown(one: Reading, check: Check) -> str:
    return one.value if isinstance(one.value, str) else _number(one.value, check.unit)


def _number(value: float, unit: str) -> str:
    return f"{value:.4g} {unit}".rstrip()


def summary(verdict: Verdict, seconds: float) -> str:
    """Return the one line that is always shown."""
    bad, notes = verdict.bad, [one for one in verdict.findings if not one.is_bad]
    took = f"({seconds:.1f} s)"
    if not verdict.findings:
        return f"preflight: {counted(verdict.num_nodes, 'node')} fine {took}"
    names = listed([one.node for one in bad], _MAX_NAMED)
    found = f"bad: {names}" if bad else "no bad one"
    noted = f", {counted(len(notes), 'note')}" if notes else ""
    return f"preflight: {counted(verdict.num_nodes, 'node')}, {found}{noted} {took}"
