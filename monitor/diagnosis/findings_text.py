"""Findings for people and for programs: folded where many GPUs show the same, or as JSON."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections import Counter
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from monitor.diagnosis.diagnose import COLUMNS, diagnose, not_looked
from monitor.diagnosis.findings import SEVERITIES, span, status
from monitor.errors import UserError
from monitor.logs import series
from monitor.plot.axis import Axis, utc_offset
from monitor.report import words
from monitor.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from monitor.diagnosis.findings import Finding
    from monitor.diagnosis.thresholds import Thresholds
    from monitor.logs.series import Run

_INDENT = " " * 9
_MAX_WIDTH = 100
_MAX_NAMES = 60  # characters
_MAX_SORTS = 4


def report(paths: Sequence[str], thresholds: Thresholds, *, as_json: bool = False) -> int:
    """Print what is wrong with a run; its status as `findings.status` has it.

    Raises:
        UserError: a path cannot be read, or all of them together hold nothing to judge by.

    """
    run = series.load(paths, COLUMNS)
    if not (_num_samples(run) or run.marks or run.metrics or run.events):
        raise UserError(
            f"diagnose: must have samples or events to judge by; found none in {', '.join(paths)}:"
            " name a run directory that has its .gutil logs beside it, or the logs"
        )
    found = diagnose(run, thresholds)
    if as_json:
        told = document(run, found, thresholds)
        print(json.dumps(told, indent=2, ensure_ascii=False, allow_nan=False))
    else:
        width = min(_MAX_WIDTH, shutil.get_terminal_size((_MAX_WIDTH, 24)).columns)
        print("\n".join(lines(run, found, width)))
    return status(found)


def document(run: Run, found: Sequence[Finding], thresholds: Thresholds) -> dict[str, Any]:
    """Make the document for programs."""
    return {
        "run": run.name,
        "num_nodes": _num_nodes(run),
        "num_gpus": _num_gpus(run),
        "findings": [asdict(one) for one in found],
        "not_looked": [asdict(one) for one in not_looked(run)],
        "thresholds": thresholds.as_dict(),
        "status": status(found),
    }


def lines(run: Run, found: Sequence[Finding], width: int) -> Iterator[str]:
    """Write findings for people, those that are alike together, worst first."""
    axis = _axis(run, found)
    yield textwrap.fill(_headline(run, found, axis), width)
    for group in folded(found):
        yield ""
        yield from _group(run, group, axis, width)
    yield ""
    yield from (textwrap.fill(note, width, subsequent_indent="  ") for note in _notes(run))


def folded(found: Sequence[Finding]) -> list[list[Finding]]:
    """Put together what is alike but for its place and its numbers; each in the order it came."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for one in found:
        alike = (one.severity, one.rule, one.about, one.suggestion, one.job)
        groups.setdefault(alike, []).append(one)
    return list(groups.values())


def _axis(run: Run, found: Sequence[Finding]) -> Axis:
    """Give the time that is looked at, and whose clock tells it."""
    ends = [float(one.time_s[i]) for one in run.gpus if one.num_samples for i in (0, -1)]
    ends += [time_s for one in found for time_s in (one.begin_s, one.end_s) if time_s is not None]
    ends = [time_s for time_s in ends if np.isfinite(time_s)] or [0.0]
    offset = utc_offset(run.gpus) if run.gpus else timedelta()
    return Axis(min(ends), max(ends) - min(ends), 1, offset)


def _headline(run: Run, found: Sequence[Finding], axis: Axis) -> str:
    counts = Counter(group[0].severity for group in folded(found))
    told = ", ".join(counted(counts[name], name) for name in SEVERITIES if counts[name])
    told = told or ("nothing found" if _num_samples(run) else "no monitor's log was read")
    job = f"{run.name}: " if run.name else ""
    size = f"{counted(_num_gpus(run), 'GPU')} on {counted(_num_nodes(run), 'node')}"
    when = f", {_when(axis, axis.begin_s, axis.end_s)}, {axis.zone}" if axis.begin_s else ""
    return f"{job}{told}; {size}{when}"


def _group(run: Run, group: Sequence[Finding], axis: Axis, width: int) -> Iterator[str]:
    first = group[0]
    times = span(group)
    when = f", {_when(axis, *times)}" if times else ""
    head = f"{first.severity.upper():8} {first.rule}: {places(run, group)}{when}"
    yield textwrap.fill(head, width, subsequent_indent=_INDENT)
    worst = f"worst, {place(first)}: " if len(group) > 1 else ""
    for text in (worst + first.evidence, f"-> {first.suggestion}"):
        yield textwrap.fill(text, width, initial_indent=_INDENT, subsequent_indent=_INDENT)


def places(run: Run, group: Sequence[Finding]) -> str:
    """Name where findings are: `gpu[001-016], all GPUs`."""
    by_host: dict[str, set[int]] = {}
    for one in group:
        mine = by_host.setdefault(one.host or "", set())
        mine |= set() if one.gpu is None else {one.gpu}
    whole: dict[str, set[int]] = {host: set() for host in by_host}
    for gpu in run.gpus:
        if gpu.gpu is not None and gpu.host in whole and group[0].job in (None, gpu.job):
            whole[gpu.host].add(gpu.gpu)
    alike: dict[str, list[str]] = {}
    for host, mine in by_host.items():
        alike.setdefault(_gpus(mine, whole[host]), []).append(host)
    told = [f"{_hosts(hosts)}{gpus}" for gpus, hosts in alike.items()]
    num_more = sum(len(hosts) for hosts in list(alike.values())[_MAX_SORTS:])
    more = [f"and on {counted(num_more, 'more node')}"] if num_more else []
    job = group[0].job
    which = f"job {job}, " if job and len({gpu.job for gpu in run.gpus}) > 1 else ""
    return which + "; ".join([*told[:_MAX_SORTS], *more])


def place(one: Finding) -> str:
    """Name where a finding is: `gpu001 GPU 3`."""
    return f"{one.host or 'the job'}" + ("" if one.gpu is None else f" GPU {one.gpu}")


def _gpus(mine: set[int], whole: set[int]) -> str:
    if not mine:
        return ""
    if mine == whole and len(mine) > 1:
        return ", all GPUs"
    indices = words.host_list(str(index) for index in mine)
    return f" GPU {indices.strip('[]')}"


def _hosts(hosts: Sequence[str]) -> str:
    names = words.host_list(hosts)
    if len(names) > _MAX_NAMES:
        return f"{counted(len(hosts), 'node')} of {min(hosts)} to {max(hosts)}"
    return names or "the job"


def _when(axis: Axis, begin_s: float, end_s: float) -> str:
    """Write a time as the node's own clock showed it; the day once, and not where it is unknown."""
    begin, end = axis.local(begin_s), axis.local(end_s)
    day = "%Y-%m-%d " if axis.dated else ""
    told = f"{begin:{day}%H:%M:%S}"
    if begin_s == end_s:
        return told
    return f"{told} to {end:{'' if begin.date() == end.date() else day}%H:%M:%S}"


def _notes(run: Run) -> Iterator[str]:
    looked_at = (
        f"looked at {counted(_num_samples(run), 'sample')}, {counted(len(run.marks), 'event')}"
        f" and {counted(len(run.metrics), 'line')} of metrics"
    )
    bad = f"; {counted(run.num_unreadable, 'row')} could not be read"
    yield looked_at + (bad if run.num_unreadable else "")
    lacking: dict[str, list[str]] = {}
    for one in not_looked(run):
        where = f" on {len(one.hosts)} of {counted(_num_nodes(run), 'node')}" if one.hosts else ""
        lacking.setdefault(f"no {one.lacks.partition(' or ')[0]}{where}", []).append(one.rule)
    if lacking:
        told = "; ".join(f"{lack}: {', '.join(names)}" for lack, names in lacking.items())
        yield f"not looked for, since the logs lack it (see `record --columns`): {told}"


def _num_samples(run: Run) -> int:
    return sum(one.num_samples for one in run.gpus)


def _num_nodes(run: Run) -> int:
    return len({(one.job, one.host) for one in run.gpus})


def _num_gpus(run: Run) -> int:
    return sum(one.gpu is not None for one in run.gpus)
