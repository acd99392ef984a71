"""What happened in a run, as marks on its time axis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monitor.runs.history import integer, seconds
from rundir.text import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monitor.logs.log_events import LogEvent
    from monitor.logs.series import PlacedEvent, Run

KINDS = {
    "start": "start",
    "checkpoint": "checkpoint",
    "restart": "restart",
    "signal": "signal",
    "failure": "failure",
    "fault": "GPU fault",
    "end": "end",
}
"""Each kind of mark and its words, in the order of the legend."""

_FAULTS = {
    "xid": "XID",
    "ecc": "ECC error",
    "remap": "row remapped",
    "lost": "lost",
    "back": "back",
}
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
    events = [_reported(line) for line in run.events] + [
        _marked(placed) for placed in run.log_events
    ]
    found = [event for event in events if event is not None and math.isfinite(event.time_s)]
    return tuple(sorted(found, key=lambda event: event.time_s))


def _reported(line: Mapping[str, Any]) -> Event | None:
    time_s = seconds(line.get("time"))
    found = _WORDS.get(str(line.get("event")))
    if time_s is None or found is None:
        return None
    kind, words = found
    if kind == "start" and (integer(line.get("attempt")) or 1) > 1:
        kind = "restart"
    return Event(time_s, kind, words(line)[:_MAX_TEXT])


def _start(line: Mapping[str, Any]) -> str:
    number = integer(line.get("attempt")) or 1
    size = integer(line.get("world_size"))
    ranks = "" if size is None else f", {counted(size, 'rank')}"
    return f"start {number}{ranks}"


def _checkpoint(line: Mapping[str, Any]) -> str:
    return f"checkpoint at step {line.get('step', '?')}"


def _no_checkpoint(line: Mapping[str, Any]) -> str:
    return f"no checkpoint at step {line.get('step', '?')}: {line.get('reason', 'unknown')}"


def _signal(line: Mapping[str, Any]) -> str:
    return f"signal {line.get('signal', '?')}, seen by the {line.get('source', 'job')}"


def _failure(line: Mapping[str, Any]) -> str:
    how = line.get("signal") or f"code {line.get('code', '?')}"
    return f"rank {line.get('rank', '?')} on {line.get('node', '?')} failed: {how}"


def _verdict(line: Mapping[str, Any]) -> str:
    return str(line.get("text") or "a rank hangs")


def _lost_node(line: Mapping[str, Any]) -> str:
    return f"node {line.get('node', '?')} is lost"


def _node_left(line: Mapping[str, Any]) -> str:
    return f"node {line.get('node', '?')} has left"


def _node_back(line: Mapping[str, Any]) -> str:
    return f"node {line.get('node', '?')} is back"


def _non_finite(line: Mapping[str, Any]) -> str:
    return f"not finite at step {line.get('step', '?')}: {line.get('action', '?')}"


def _end(line: Mapping[str, Any]) -> str:
    return f"end of start {integer(line.get('attempt')) or 1}, code {line.get('code', '?')}"


_WORDS = {
    "start": ("start", _start),
    "checkpoint": ("checkpoint", _checkpoint),
    "checkpoint_failed": ("failure", _no_checkpoint),
    "signal": ("signal", _signal),
    "first_failure": ("failure", _failure),
    "verdict": ("failure", _verdict),
    "lost_node": ("failure", _lost_node),
    "node_left": ("failure", _node_left),
    "node_back": ("signal", _node_back),
    "non_finite": ("failure", _non_finite),
    "end": ("end", _end),
}


def _marked(placed: PlacedEvent) -> Event | None:
    mark = placed.event
    if mark.kind not in _FAULTS:
        return None
    where = placed.host if mark.gpu is None else f"{placed.host} GPU {mark.gpu}"
    what, text = described(mark)
    words = f"{what} on {where}" + (f": {text}" if text else "")
    return Event(mark.time_s, "fault", words[:_MAX_TEXT])


def described(mark: LogEvent) -> tuple[str, str]:
    """Name an event, such as `XID 79`, and return what else is known of it, maybe nothing."""
    details = {name: text.replace("_", " ") for name, text in mark.details.items() if text != "-"}
    what = " ".join([_FAULTS.get(mark.kind, mark.kind), *filter(None, [details.pop("xid", None)])])
    text = [*filter(None, [details.pop("text", None)])]
    return what, ", ".join([*text, *(f"{name} {value}" for name, value in details.items())])
