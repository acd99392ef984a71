"""Rules on faults that are reported: by the hardware, by the driver, by the run itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from monitor.analysis import events, readings
from monitor.analysis.findings import Finding
from monitor.analysis.rules import EVENTS, Window, rule
from monitor.logs import log_events
from monitor.logs.columns import SIGNS_OF_LIFE
from monitor.logs.sample import NO_READINGS
from monitor.words import and_more
from rundir import xids
from rundir.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from monitor.analysis.findings import Severity
    from monitor.analysis.thresholds import Thresholds
    from monitor.logs.log_events import LogEvent
    from monitor.logs.series import GpuSeries, Run

_RESET = "the GPU needs a reset before that takes effect: report it to the administrators"
_EXCLUDE = "exclude the node (sbatch --exclude) and report it to the administrators"
_GPU_IS_GONE = f"see dmesg of the node for XID 79 and its like; {_EXCLUDE}"
_NVML_IS_GONE = (
    "NVML answers for no GPU of the node: if nvidia-smi answers there, only the monitor has lost it"
    f" (as in a container after `systemctl daemon-reload`); else {_EXCLUDE}"
)


def _growth(
    counter: NDArray[np.floating] | None,
) -> tuple[float, NDArray[np.bool_] | None]:
    """Return by how much a counter grew, and in which samples; where it falls it was reset."""
    if counter is None:
        return 0.0, None
    known = np.flatnonzero(~np.isnan(counter))
    steps = np.diff(counter[known])
    where = np.zeros(len(counter), np.bool_)
    where[known[1:]] = steps > 0
    return float(steps[steps > 0].sum()), where


@rule(
    "ecc",
    "errors of a GPU's memory: not corrected, or many corrected ones",
    needs=("dbecc|sbecc",),
    stays=True,
    thresholds=("corrected_errors",),
)
def _ecc(run: Run, at: Thresholds) -> Iterator[Finding]:
    with_counter = set()
    for series in readings.gpus(run):
        for one in _ecc_counted(series, at):
            with_counter.add((one.severity, one.job, one.host, one.gpu))
            yield one
    for event, several in _logged(run, "ecc"):
        if event.details.get("bits") in ("1", "single"):
            continue  # corrected: the counter has how many
        if ("error", *event.place, event.gpu) not in with_counter:
            text = "memory error that could not be corrected"
            yield _of_event("error", event, several, text, _EXCLUDE)


def _ecc_counted(series: GpuSeries, at: Thresholds) -> Iterator[Finding]:
    double = series.column("dbecc")
    grown, where = _growth(double)
    standing = 0.0 if double is None else float(np.nanmax(double))
    if grown:
        text = f"{counted(grown, 'memory error')} came up that could not be corrected"
        yield readings.finding("error", series, where, text, _EXCLUDE, weight=grown)
    elif standing:
        text = f"{counted(standing, 'memory error')} that could not be corrected, from before"
        fix = "ask the administrators for a reset of the GPU: it may hold damaged memory"
        yield readings.finding("warning", series, None, text, fix, weight=standing)
    few, where = _growth(series.column("sbecc"))
    if readings.reaches(few, at.corrected_errors):
        text = f"{counted(few, 'memory error')} came up, and could be corrected"
        fix = "nothing is wrong yet; report to the administrators that its memory wears out"
        yield readings.finding("hint", series, where, text, fix, weight=few)


@rule(
    "remap",
    "rows of a GPU's memory were replaced by spare ones, or could not be",
    needs=("remap",),
    stays=True,
)
def _remap(run: Run, at: Thresholds) -> Iterator[Finding]:  # noqa: ARG001 - a rule's signature
    with_counter = set()
    for series in readings.gpus(run):
        rows = series.column("remap")
        grown, where = _growth(rows)
        if rows is not None and grown:
            with_counter.add((series.job, series.host, series.gpu))
            text = f"{counted(grown, 'row')} of memory remapped, {np.nanmax(rows):.0f} in all"
            yield readings.finding("warning", series, where, text, _RESET, weight=grown)
    for event, several in _logged(run, "remap"):
        if event.details.get("failed", "0") not in ("0", "no", "false"):
            text = "a bad row of memory could not be remapped"
            yield _of_event("error", event, several, text, _EXCLUDE)
        elif (*event.place, event.gpu) not in with_counter:
            text = "a row of memory is to be remapped"
            yield _of_event("warning", event, several, text, _RESET)


@rule(
    "xid",
    "the driver reported a fault: of program or hardware, by NVIDIA's catalogue",
    needs=(EVENTS,),
    stays=True,
)
def _xid(run: Run, at: Thresholds) -> Iterator[Finding]:  # noqa: ARG001 - a rule's signature
    for event, several in _logged(run, "xid"):
        number = event.details.get("xid", "")
        known = xids.look_up(number)
        text = f"XID {number or '?'}: {known.meaning} ({known.fault})"
        fix = xids.SUGGESTIONS[known.owner]
        yield _of_event(known.severity, event, several, text, fix, about=number)


def _logged(run: Run, kind: str) -> Iterator[tuple[LogEvent, Sequence[LogEvent]]]:
    """Group the log's events of a kind by GPU and sort; return the first of each group, and all."""
    groups: dict[object, list[LogEvent]] = {}
    for event in run.log_events:
        if event.kind == kind:
            sort = tuple(event.details.get(name) for name in ("xid", "failed", "bits"))
            groups.setdefault((event.place, event.gpu, sort), []).append(event)
    return ((group[0], group) for group in groups.values())


def _of_event(  # noqa: PLR0913 - a finding has that many parts
    severity: Severity,
    event: LogEvent,
    several: Sequence[LogEvent],
    text: str,
    suggestion: str,
    *,
    about: str = "",
) -> Finding:
    times = [one.time_s for one in several if not np.isnan(one.time_s)]
    return Finding(
        severity=severity,
        host=event.place.host,
        gpu=event.gpu,
        begin_s=min(times, default=None),
        end_s=max(times, default=None),
        evidence=text + (f", {counted(len(several), 'time')}" if len(several) > 1 else ""),
        suggestion=suggestion,
        job=event.place.job,
        about=about,
        weight=len(several),
    )


_ALWAYS = tuple(name for name in SIGNS_OF_LIFE if name != "sm")
"""What every GPU reports that is there, also under MIG, which refuses `sm`."""


@rule(
    "lost",
    "a GPU gives no readings any more",
    needs=("|".join(_ALWAYS),),
    reads=("sm",),
    reads_silence=True,
    thresholds=("lost_samples",),
)
def _lost(run: Run, at: Thresholds) -> Iterator[Finding]:
    for series in readings.gpus(run):
        if series.values.keys().isdisjoint(_ALWAYS):
            continue
        found = readings.stretches(series.is_silent, np.ones(series.num_samples))
        least = max(1, min(at.lost_samples, series.num_samples))
        worst, num_others = found.worst(least, series.num_samples)
        if worst is None:
            continue
        num = worst.end - worst.begin
        mask = np.zeros(series.num_samples, np.bool_)
        mask[worst.begin : worst.end] = True
        to_the_end = worst.end == series.num_samples
        end = "up to the end of the log" if to_the_end else "then it answered again"
        end += and_more(num_others, "time")
        is_nvml = to_the_end and series.facts.get("gpus", "").startswith(NO_READINGS)
        never = "" if isinstance(run, Window) else ": it never answered"
        yield readings.finding(
            "error" if to_the_end else "warning",
            series,
            mask,
            f"no reading in any of {counted(series.num_samples, 'sample')}{never}"
            if num == series.num_samples
            else f"no reading in {num} of {counted(series.num_samples, 'sample')} one after the"
            f" other, {end}",
            _NVML_IS_GONE if is_nvml else _GPU_IS_GONE,
            weight=num,
        )


@rule(
    "driver",
    "live: the driver lost a GPU, answers slowly, or answers again",
    needs=(EVENTS,),
    scope="live",
    stays=True,
)
def _driver(run: Run, at: Thresholds) -> Iterator[Finding]:  # noqa: ARG001 - a rule's signature
    for kind, severity in _BY_DRIVER.items():
        for event, several in _logged(run, kind):
            what, text = log_events.described(event)
            text = f"{what}: {text}" if text else what
            yield _of_event(severity, event, several, text, "see dmesg of the node", about=kind)


_SEE_WHY = "`python -m monitor why` has the evidence"

REPORTS: dict[str, tuple[Severity, str]] = {
    "verdict": ("error", "{text}"),
    "lost_node": ("error", "node {node} is lost: {how}"),
    "bad_node": ("error", "node {node} is bad and leaves the job: {reason}"),
    "failure": ("error", "rank {rank}: {error}"),
    "non_finite": ("warning", "a loss or gradient at step {step} is not finite: {action}"),
    "checkpoint_failed": ("error", "no checkpoint at step {step}: {reason}"),
    "signal": ("warning", "signal {signal} was received"),
}
"""The run's events that need a person, by name."""

_BY_DRIVER: dict[str, Severity] = {"lost": "error", "slow": "warning", "back": "hint"}


@rule(
    "reported",
    "live: the run reports a failure, a verdict, a lost node, a signal",
    scope="live",
    stays=True,
)
def _reported(run: Run, at: Thresholds) -> Iterator[Finding]:  # noqa: ARG001 - a rule's signature
    for event in run.events:
        name = str(event.get("event"))
        if name in REPORTS:
            severity, text = REPORTS[name]
            yield Finding(
                severity=severity,
                evidence=text.format_map(events.Known(event)),
                suggestion=_SEE_WHY,
                about=f"{name} {event.get('time')}",
            )


RULES = (_reported, _driver, _lost, _xid, _ecc, _remap)
