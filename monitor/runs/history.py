"""A run's events and metrics, separated by attempt; every reading of them is safe on torn ones."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from monitor.logs import constants
from rundir import codes
from rundir.failure import attempt as read
from rundir.failure.attempt import integer as integer  # noqa: PLC0414 - for who reads events here

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from rundir.events import Event


_CODES = {"finished": codes.FINISHED, "stopped": codes.STOPPED, "failed": codes.FAILED}
_LARGEST = sys.float_info.max
_MOST = 1e18  # no second, share or speed of a run is as large; sums of larger ones would overflow


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of the run: its events and its lines of metrics, each in the order of the file.

    The order of the file is the order of what happened: the clocks of nodes may differ.
    """

    number: int
    events: tuple[Event, ...]
    metrics: tuple[Event, ...]

    def all(self, name: str) -> list[Event]:
        """Every event of a name."""
        return read.every(self.events, name)

    def first(self, name: str) -> Event:
        """Give the first event of a name, empty if there is none."""
        return read.first(self.events, name)

    def last(self, name: str) -> Event:
        """Give the last event of a name, empty if there is none."""
        return read.last(self.events, name)

    @property
    def lived(self) -> Sequence[Event]:
        """Every event but what a later start found out about it; all if there is nothing else."""
        return [e for e in self.events if e.get("afterwards") is not True] or self.events

    @property
    def code(self) -> int | None:
        """The exit code that the attempt ended with; None if no end was reported.

        Without the batch script no end is reported: then it is what the launchers saw, or what the
        trainer reports of itself.
        """
        if self.last("end") or self.last("start"):
            return integer(self.last("end").get("code"))
        ends = [integer(e.get("code")) for e in self.all("rank_end")]
        if ends and len(ends) >= len(self.all("rank_up")):
            return next((code for code in ends if code), 0)
        summary = self.last("summary").get("summary")
        outcome = summary.get("outcome") if isinstance(summary, dict) else None
        return _CODES.get(outcome) if isinstance(outcome, str) else None

    @property
    def is_foreign(self) -> bool:
        """Whether it ran a command of the user's own and not our trainer."""
        command = self.last("start").get("command")
        is_command = isinstance(command, list) and command[:1] == ["--"]
        return is_command and not any(e.get("source") == "trainer" for e in self.events)

    def steps(self) -> list[int]:
        """All steps that anybody saw done, in no order that matters."""
        steps = [line.get("step") for line in self.metrics]
        steps += [e.get("step") for e in self.events if e.get("event") in ("first_step", "resume")]
        steps += [e.get("step") for e in self.all("checkpoint")]
        for event in (*self.all("last_beats"), *self.all("hang_report")):
            steps += [one.get("step") for one in mappings(event.get("ranks"))]
        summary = self.last("summary").get("summary")
        steps.append(summary.get("steps") if isinstance(summary, dict) else None)
        return [step for step in map(integer, steps) if step is not None]

    @property
    def last_step(self) -> int | None:
        """The last step that was reached; None where steps are unknown."""
        return max(self.steps(), default=None)

    @property
    def resumed_step(self) -> int | None:
        """The step it began from; None where it is unknown."""
        event = self.first("resume")
        return (integer(event.get("step")) or 0) if event else None

    @property
    def num_rolled_back(self) -> int:
        """How many steps were undone within the attempt: each later `resume` goes back."""
        undone = at = 0
        is_under_way = False
        for event in self.events:
            step = integer(event.get("step")) or 0
            if event.get("event") == "non_finite":
                at = step
            elif event.get("event") == "resume":
                undone += max(0, at - step) if is_under_way else 0
                at, is_under_way = step, True
        return undone

    @property
    def saved_step(self) -> int | None:
        """The step that the next start can begin from, as far as this attempt knows."""
        saved = [integer(e.get("step")) for e in self.all("checkpoint")]
        steps = [step for step in saved if step is not None]
        return max(steps) if steps else self.resumed_step


def attempts(events: Sequence[Event], metrics: Sequence[Event]) -> list[Attempt]:
    """Separate the attempts, in the order of their numbers."""
    mine: dict[int, list[Event]] = {}
    for event in events:
        mine.setdefault(integer(event.get("attempt")) or 1, []).append(event)
    return [
        Attempt(number, tuple(mine[number]), tuple(_metrics_of(number, mine[number], metrics)))
        for number in sorted(mine)
    ]


def _metrics_of(number: int, events: Sequence[Event], metrics: Sequence[Event]) -> list[Event]:
    """Pick the metrics of one attempt: by number, else by time; one without a time is recent."""
    since = str(events[0].get("time", "")) if events else ""
    return [
        line
        for line in metrics
        if (
            line.get("attempt") == number
            if "attempt" in line
            else str(line.get("time", "~")) >= since
        )
        and "step" in line
    ]


@dataclass(frozen=True, slots=True)
class Span:
    """When an attempt began and ended, in seconds since 1970; never the wrong way round."""

    begin_s: float
    end_s: float


def spans(several: Sequence[Attempt]) -> list[Span]:
    """Place the attempts in time, one after the other, also where a clock was set back.

    An attempt that reported no end is taken to its last sign of life.
    """
    placed: list[Span] = []
    begins = [_begin_s(one) for one in several]
    known = [begin_s for begin_s in begins if begin_s is not None]
    at_s = known[0] if known else 0.0
    for index, (one, begin_s) in enumerate(zip(several, begins, strict=True)):
        end_s, next_s = _end_s(one), begins[index + 1] if index + 1 < len(begins) else None
        if end_s is not None and next_s is not None and not one.last("end"):
            end_s = min(end_s, next_s)  # what it left behind spoke on
        first_s = at_s if begin_s is None else max(at_s, begin_s)
        at_s = first_s if end_s is None else max(first_s, end_s)
        placed.append(Span(first_s, at_s))
    return placed


def _begin_s(attempt: Attempt) -> float | None:
    events = [attempt.last("start"), *attempt.events]
    return next(iter(times(events)), None)


def _end_s(attempt: Attempt) -> float | None:
    end_s = seconds(attempt.last("end").get("time"))
    if end_s is not None:
        return end_s
    # Another node's clock may be an hour off: the node that reported the start is the measure.
    host = attempt.last("start").get("host")
    near = [e for e in attempt.lived if e.get("host") == host] or attempt.lived
    return max(times((*near, *attempt.metrics)), default=None)


def seconds(time: object) -> float | None:
    """Read a time as events have it, as seconds since 1970; None if it is none, or damaged."""
    if not isinstance(time, str):
        return None
    try:
        moment = datetime.fromisoformat(time)
        time_s = moment.timestamp() if moment.tzinfo else -1.0
    except (ValueError, OverflowError):
        return None
    return time_s if 0 <= time_s <= constants.LATEST_S else None


def times(events: Iterable[Mapping[str, Any]]) -> list[float]:
    """Give the times of events that have one, in seconds since 1970, in their order."""
    found = (seconds(event.get("time")) for event in events)
    return [time_s for time_s in found if time_s is not None]


def time_of_day(time_s: float) -> str:
    """Write a time, in seconds since 1970, by this machine's clock: 13:02:46."""
    return f"{datetime.fromtimestamp(time_s).astimezone():%H:%M:%S}"


def finite(value: object) -> float | None:
    """Give a number that a float can hold as it is, and None for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) <= _LARGEST else None  # type: ignore[arg-type] # just seen


def number(value: object) -> float | None:
    """Give a number from 0 to `_MOST` as it is, and None for anything else."""
    found = finite(value)
    return found if found is not None and 0 <= found < _MOST else None


def mappings(value: object) -> list[Event]:
    """Give the mappings in a list, or those that a mapping leads to."""
    items = value.values() if isinstance(value, dict) else value
    return [item for item in items if isinstance(item, dict)] if hasattr(items, "__iter__") else []


def picked(event: Event, keys: Sequence[str]) -> Event:
    """Take some keys of an event, None where it lacks one; empty from an empty one."""
    return {key: event.get(key) for key in keys} if event else {}
