"""`diagnose`: findings for people and, as JSON, for programs; and the list of rules."""

from __future__ import annotations

import json
import shutil
import textwrap
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from monitor.analysis import engine, thresholds
from monitor.analysis.axis import Axis, utc_offset
from monitor.analysis.findings import by_severity, status, summaries
from monitor.analysis.thresholds import MEANINGS, Thresholds
from monitor.errors import UserError
from monitor.logs import series
from rundir.text import counted

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator, Sequence

    from monitor.analysis.findings import Finding, Summary
    from monitor.logs.series import Run

_INDENT = " " * 9
_MAX_WIDTH = 100


def add_options(parser: ArgumentParser) -> None:
    """Add its options."""
    parser.epilog = (
        "exit status: 0 nothing worse than a hint, 3 a warning, 4 an error, 64 wrong input"
    )
    parser.add_argument(
        "paths", nargs="*", metavar="PATHS", help="run directories, logs, directories of logs"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document, for programs")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="settings",
        metavar="NAME=NUMBER",
        help="another threshold, such as idle_minutes=5; may be given several times",
    )
    parser.add_argument("--thresholds", metavar="FILE", help="a TOML file of such thresholds")
    parser.add_argument("--list-rules", action="store_true", help="rules, thresholds, defaults")


def run(options: Namespace) -> int:
    """Print what is wrong with a run; its status as `findings.status` has it."""
    at = thresholds.chosen(options.settings, options.thresholds)
    if options.list_rules:
        print("\n".join(rule_list(at)))
        return 0
    if not options.paths:
        raise UserError(
            "diagnose must be given at least one path",
            "none",
            "name a run directory such as out/slurm-123, or logs",
        )
    whole = series.load(options.paths, engine.columns())
    if not (_num_samples(whole) or whole.log_events or whole.metrics or whole.events):
        raise UserError(
            "diagnose must have samples or events to judge by",
            f"none in {', '.join(options.paths)}",
            "name a run directory that has its .gutil logs beside it, or the logs",
        )
    found = engine.evaluate(whole, at)
    if options.json:
        made = document(whole, found, at)
        text = json.dumps(made, indent=2, ensure_ascii=False, allow_nan=False)
    else:
        width = min(_MAX_WIDTH, shutil.get_terminal_size((_MAX_WIDTH, 24)).columns)
        text = "\n".join(lines(whole, found, width))
    with suppress(BrokenPipeError):  # the status counts, also behind `| head`
        print(text)
    return status(found)


def document(run: Run, found: Sequence[Finding], at: Thresholds) -> dict[str, Any]:
    """Make the document for programs."""
    return {
        "run": run.name,
        "num_nodes": _num_nodes(run),
        "num_gpus": _num_gpus(run),
        "findings": [asdict(one) for one in found],
        "not_looked": [asdict(one) for one in engine.skipped(run)],
        "thresholds": at.as_dict(),
        "status": status(found),
    }


def lines(run: Run, found: Sequence[Finding], width: int) -> Iterator[str]:
    """Write findings for people, those that are alike together, worst first."""
    axis, alike = _axis(run, found), summaries(run, found)
    yield textwrap.fill(_headline(run, alike, axis), width)
    for one in alike:
        yield ""
        yield from _block(one, axis, width)
    yield ""
    yield from (textwrap.fill(note, width, subsequent_indent="  ") for note in _notes(run))


def _axis(run: Run, found: Sequence[Finding]) -> Axis:
    """Return the time that was recorded, and by whose clock."""
    sampled = [one for one in run.gpus if one.num_samples]
    ends = [float(time_s) for one in sampled for time_s in one.written_s[[0, -1]]]
    ends += [time_s for one in found for time_s in (one.begin_s, one.end_s) if time_s is not None]
    ends = [time_s for time_s in ends if np.isfinite(time_s)] or [0.0]
    offset = utc_offset(run.gpus) if run.gpus else timedelta()
    return Axis(min(ends), max(ends) - min(ends), 1, offset)


def _headline(run: Run, found: Sequence[Summary], axis: Axis) -> str:
    nothing = "nothing found" if _num_samples(run) else "no monitor's log was read"
    job = f"{run.name}: " if run.name else ""
    size = f"{counted(_num_gpus(run), 'GPU')} on {counted(_num_nodes(run), 'node')}"
    when = f", {_when(axis, axis.begin_s, axis.end_s)}, {axis.zone}" if axis.begin_s else ""
    return f"{job}{by_severity(found) or nothing}; {size}{when}"


def _block(one: Summary, axis: Axis, width: int) -> Iterator[str]:
    when = f", {_when(axis, *one.span_s)}" if one.span_s else ""
    head = f"{one.severity.upper():8} {one.rule}: {one.where}{when}"
    yield textwrap.fill(head, width, subsequent_indent=_INDENT)
    for text in (one.whole_evidence, f"-> {one.suggestion}"):
        yield textwrap.fill(text, width, initial_indent=_INDENT, subsequent_indent=_INDENT)


def _when(axis: Axis, begin_s: float, end_s: float) -> str:
    """Write a time as the node's own clock showed it; the day once, and not where it is unknown."""
    begin, end = axis.local(begin_s), axis.local(end_s)
    day = "%Y-%m-%d " if axis.dated else ""
    text = f"{begin:{day}%H:%M:%S}"
    if begin_s == end_s:
        return text
    return f"{text} to {end:{'' if begin.date() == end.date() else day}%H:%M:%S}"


def _notes(run: Run) -> Iterator[str]:
    looked_at = (
        f"looked at {counted(_num_samples(run), 'sample')}, {counted(len(run.log_events), 'event')}"
        f" and {counted(len(run.metrics), 'line')} of metrics"
    )
    bad = f"; {counted(run.num_unreadable, 'row')} could not be read"
    yield looked_at + (bad if run.num_unreadable else "")
    lacking: dict[str, list[str]] = {}
    for one in engine.skipped(run):
        where = f" on {len(one.hosts)} of {counted(_num_nodes(run), 'node')}" if one.hosts else ""
        lacking.setdefault(f"no {one.lacks.partition(' or ')[0]}{where}", []).append(one.rule)
    if lacking:
        text = "; ".join(f"{lack}: {', '.join(names)}" for lack, names in lacking.items())
        yield f"not looked for, since the logs lack it (see `record --columns`): {text}"


def _num_samples(run: Run) -> int:
    return sum(one.num_samples for one in run.gpus)


def _num_nodes(run: Run) -> int:
    return len({(one.job, one.host) for one in run.gpus})


def _num_gpus(run: Run) -> int:
    return len({one.unit for one in run.gpus if one.gpu is not None})


def rule_list(at: Thresholds) -> Iterator[str]:
    """Write every rule with the names of its thresholds, then those, and which are not usual."""
    yield "rules, in the order in which they are reported:"
    for rule in engine.rules():
        yield f"  {rule.name:12} {rule.meaning}"
        if rule.thresholds:
            indent = " " * 17
            names = ", ".join(rule.thresholds)
            yield textwrap.fill(names, _MAX_WIDTH, initial_indent=indent, subsequent_indent=indent)
    yield ""
    yield "thresholds (--set NAME=NUMBER, or NAME = NUMBER in a file for --thresholds):"
    usual = Thresholds().as_dict()
    for name, value in at.as_dict().items():
        changed = "" if value == usual[name] else f" (usually {usual[name]:g})"
        yield f"  {f'{name}={value:g}':24} {MEANINGS[name]}{changed}"
