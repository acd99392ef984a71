"""What happened in a run, as events on its time axis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monitor.logs import log_events
from monitor.runs.history import integer, seconds
from rundir.text import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monitor.logs.log_events import LogEvent
    from monitor.logs.series import Run

KINDS = {
    "start": "start",
    "checkpoint": "checkpoint",
    "restart": "restart",
    "signal": "signal",
    "failure": "failure",
    "fault": "GPU fault",
    "end": "end",
}
"""Each kind of event and its words, in the order of the legend."""

_MAX_TEXT = 200


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened."""

    time_s: float
    """Since 1970, UTC."""
    kind: str
    """One of KINDS."""
    text: str


def events_of(run: Run) -> tuple[Event, ...]:
    """List what happened at a known time, in its order."""
    events = [*map(_reported, run.events), *map(_logged, run.log_events)]
    found = [event for event in events if event is not None and math.isfinite(event.time_s)]
    return tuple(sorted(found, key=lambda event: event.time_s))


def _reported(line: Mapping[str, Any]) -> Event | None:
    time_s = seconds(line.get("time"))
    found = _WORDS.get(str(line.get("event")))
    if time_s is None or found is None:
        return None
    kind, words = found
    attempt, size = integer(line.get("attempt")) or 1, integer(line.get("world_size"))
    if kind == "start" and attempt > 1:
        kind = "restart"
    usual = {"reason": "unknown", "source": "job"}
    more = {
        "attempt": attempt,
        "ranks": "" if size is None else f", {counted(size, 'rank')}",
        "how": line.get("signal") or f"code {line.get('code', '?')}",
        "text": line.get("text") or "a rank hangs",
    }
    return Event(time_s, kind, words.format_map(Known(usual | {**line} | more))[:_MAX_TEXT])


class Known(dict[str, object]):
    """What an event has, for a text with names in it; `?` for what it lacks."""

    def __missing__(self, key: str) -> str:
        return "?"


_WORDS = {
    "start": ("start", "start {attempt}{ranks}"),
    "checkpoint": ("checkpoint", "checkpoint at step {step}"),
    "checkpoint_failed": ("failure", "no checkpoint at step {step}: {reason}"),
    "signal": ("signal", "signal {signal}, seen by the {source}"),
    "first_failure": ("failure", "rank {rank} on {node} failed: {how}"),
    "verdict": ("failure", "{text}"),
    "lost_node": ("failure", "node {node} is lost"),
    "bad_node": ("failure", "node {node} is bad and leaves"),
    "node_left": ("failure", "node {node} has left"),
    "node_back": ("signal", "node {node} is back"),
    "non_finite": ("failure", "not finite at step {step}: {action}"),
    "end": ("end", "end of start {attempt}, code {code}"),
}
"""Of each event its kind, and how it is written."""


def _logged(event: LogEvent) -> Event | None:
    if event.kind not in log_events.FAULTS:
        return None
    host = event.place.host
    where = host if event.gpu is None else f"{host} GPU {event.gpu}"
    what, text = log_events.described(event)
    words = f"{what} on {where}" + (f": {text}" if text else "")
    return Event(event.time_s, "fault", words[:_MAX_TEXT])
