"""What a rule is: a function of this folder, in a `RULES`; `diagnose`, `watch`, `html` show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from monitor.logs.series import Run
from rundir import paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from monitor.analysis.findings import Finding
    from monitor.analysis.thresholds import Thresholds
    from monitor.logs.series import GpuSeries

    Check = Callable[[Run, Thresholds], Iterable[Finding]]

FACT = "## "
"""An entry of `Rule.needs` that begins so is a line of our log and no column."""

EVENTS = f"{FACT}events"

METRICS = paths.METRICS
"""In `Rule.needs`: the trainer's numbers, which a run directory has."""

TIMES = "times"
"""In `Rule.needs`: samples with a time, which `dmon` without `-o T` does not write."""

ACTIVITY = "sm|smavg|smact|smutil"
"""The columns of which each shows how busy a GPU is."""

Scope = Literal["any", "whole run", "live"]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A pure function from what was recorded to findings, and what to list about it."""

    name: str
    meaning: str
    check: Check
    """Given a `Window`, it evaluates the last samples of a run that goes on."""
    needs: tuple[str, ...] = ()
    """Columns, facts and times that it cannot do without; `a|b` where one of them will do."""
    reads: tuple[str, ...] = ()
    """Columns that it uses where they exist."""
    thresholds: tuple[str, ...] = ()
    scope: Scope = "any"
    """`whole run`: a live view cannot evaluate it; `live`: nothing else can."""
    stays: bool = False
    """A live view shows findings that have ended, such as an XID, too."""
    reads_silence: bool = False
    """A column without any reading is something to evaluate, too."""

    @property
    def columns(self) -> frozenset[str]:
        """All columns that it may read."""
        names = {name for need in self.needs for name in need.split("|")} | {*self.reads}
        columns = names - {METRICS, TIMES}
        return frozenset(name for name in columns if not name.startswith(FACT))

    def lacks(self, recorded: Recorded) -> str | None:
        """Name what it needs and a node did not record; None: nothing."""
        there = recorded.columns if self.reads_silence else recorded.readings
        there |= recorded.facts
        for need in self.needs:
            names = need.split("|")
            if there.isdisjoint(names):
                return " or ".join(names)
        return None


def rule(name: str, meaning: str, **about: Any) -> Callable[[Check], Rule]:  # noqa: ANN401 - as `Rule` has them
    """Make a rule of the function that evaluates it."""
    return lambda check: Rule(name=name, meaning=meaning, check=check, **about)


@dataclass(frozen=True, kw_only=True, slots=True)
class LogState:
    """A log that a live view follows."""

    host: str
    job: str | None
    interval_s: float
    quiet_s: float
    """How long it has not grown."""
    is_there: bool


@dataclass(frozen=True)
class Window(Run):
    """The last samples of a run, as a live view knows them."""

    logs: tuple[LogState, ...] = ()
    """Empty once the run is over."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What was recorded on one node."""

    columns: frozenset[str]
    readings: frozenset[str]
    """Columns with at least one."""
    facts: frozenset[str]
    """As they stand in `Rule.needs`."""


def recorded_by_node(run: Run) -> Mapping[tuple[str | None, str], Recorded]:
    """Return what was recorded, by job and host."""
    nodes: dict[tuple[str | None, str], list[GpuSeries]] = {}
    for series in run.gpus:
        nodes.setdefault((series.job, series.host), []).append(series)
    everywhere = {METRICS} if run.metrics else set()
    with_events = {event.place for event in run.log_events}
    return {
        node: _recorded(gpus, everywhere | ({EVENTS} if node in with_events else set()))
        for node, gpus in nodes.items()
    }


def _recorded(gpus: Sequence[GpuSeries], more: set[str]) -> Recorded:
    columns = {name for series in gpus for name in series.values}
    read = {n for n in columns if any(series.column(n) is not None for series in gpus)}
    facts = {key: value for series in gpus for key, value in series.facts.items()}
    stated = [key for key, value in facts.items() if not value.startswith("none")]
    known = {FACT + key.partition(" ")[0] for key in stated}
    timed = {TIMES} if any(np.isfinite(series.time_s).any() for series in gpus) else set()
    return Recorded(frozenset(columns), frozenset(read), frozenset(known | more | timed))
