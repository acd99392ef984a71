"""What happened at one moment, as a `##` line of our log.

    ## event: 2026-11-21T12:00:00.000+01:00 xid gpu=3 xid=79 text=GPU_has_fallen_off_the_bus

First the time with its offset from UTC, or `-` where it is unknown, then what kind of thing it
was, then `name=value`. A value is one word: a blank in it is written as `_`. `gpu` is the index of
the GPU it happened to; what happened to the node has none.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from monitor.logs import constants

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import tzinfo

KEY = "event"
"""The key of the `##` line."""

FAULTS = {
    "xid": "XID",
    "ecc": "ECC error",
    "remap": "row remapped",
    "lost": "lost",
    "back": "back",
}
"""Kinds that are a GPU's faults, and their names."""

_NO_TIME = "-"
_WORD = re.compile(r"[a-z][a-z0-9_]*")
_INDEX = re.compile(r"0|[1-9][0-9]{0,3}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d", re.ASCII)


class Place(NamedTuple):
    """Whose lines these are."""

    job: str | None
    host: str


_NOWHERE = Place(None, "")


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One thing that happened."""

    time_s: float
    """Since 1970, UTC; NaN: unknown."""
    kind: str
    """`xid`, `ecc`, `remap`, `lost`, `back`, …: a word of small letters, digits and `_`."""
    gpu: int | None = None
    """Its index; None: it happened to the node."""
    details: Mapping[str, str] = field(default_factory=dict, hash=False)
    """What else is known, by name; each value one word."""
    place: Place = field(default=_NOWHERE, compare=False)
    """Whose it is, by the lines above it in its log."""


def parse(value: str) -> LogEvent | None:
    """Read what follows `## event: `; None if it is not an event, whole and sound."""
    words = value.split(" ")
    if not value.isprintable():  # `_one_word` leaves nothing else
        return None
    if len(words) < 2 or not _WORD.fullmatch(words[1]):  # noqa: PLR2004 - time and kind
        return None
    time_s = _parse_time(words[0])
    pairs = [word.partition("=") for word in words[2:]]
    details = {name: text for name, _, text in pairs}
    if time_s is None or len(details) != len(pairs):
        return None
    if not all(_WORD.fullmatch(name) and text for name, text in details.items()):
        return None
    index = details.pop("gpu", None)
    if index is not None and not _INDEX.fullmatch(index):
        return None
    return LogEvent(time_s, words[1], None if index is None else int(index), details)


def line(event: LogEvent, zone: tzinfo | None = None) -> str:
    """Write an event as the whole line, with its newline; `parse` reads it back to the millisecond.

    Args:
        event: what happened.
        zone: whose time of day to write; None: this machine's.

    """
    words = [_time(event.time_s, zone), event.kind]
    if event.gpu is not None:
        words.append(f"gpu={event.gpu}")
    words += [f"{name}={_one_word(text)}" for name, text in event.details.items()]
    return f"## {KEY}: {' '.join(words)}\n"


def described(event: LogEvent) -> tuple[str, str]:
    """Name an event, such as `XID 79`, and return what else is known of it, maybe nothing."""
    details = {name: text.replace("_", " ") for name, text in event.details.items() if text != "-"}
    what = " ".join([FAULTS.get(event.kind, event.kind), *filter(None, [details.pop("xid", None)])])
    text = [*filter(None, [details.pop("text", None)])]
    return what, ", ".join([*text, *(f"{name} {value}" for name, value in details.items())])


def _parse_time(text: str) -> float | None:
    if text == _NO_TIME:
        return math.nan
    try:
        time_s = datetime.fromisoformat(text).timestamp() if _TIME.fullmatch(text) else -1.0
    except (ValueError, OverflowError):
        return None
    return time_s if 0 <= time_s <= constants.LATEST_S else None


def _time(time_s: float, zone: tzinfo | None) -> str:
    if math.isnan(time_s):
        return _NO_TIME
    moment = datetime.fromtimestamp(round(time_s, 3), UTC)
    return moment.astimezone(zone).isoformat(timespec="milliseconds")


def _one_word(text: str) -> str:
    """Leave no blank and nothing that ends a line."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    return "_".join(printable.split()) or "-"
