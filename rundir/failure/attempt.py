"""The events of one attempt, read safely: a line may be torn, and any key may hold anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rundir import codes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rundir.events import Event

_MAX_CODE = 255


class End(NamedTuple):
    """How one rank ended, or is taken to have ended."""

    rank: int | None
    """None: all ranks of the node."""
    node: str | None
    """None, with no rank: all ranks of the step."""
    code: int
    signal: str | None


class Ends(NamedTuple):
    """What became of the ranks, each list in the order of the log: clocks of nodes may differ."""

    up: dict[int, str | None]
    """The nodes of ranks that started and reported no end."""
    nodes: dict[int, str | None]
    """The nodes of all ranks."""
    finished: list[End]
    failed: list[End]
    """Ended with a code of their own doing."""
    requested: list[End]
    """Ended with a code after their agent was asked to stop."""
    oom: set[int]
    """Ranks that the kernel ended for want of memory."""


def integer(value: object) -> int | None:
    """Return a whole number as it is, and None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def text(value: object) -> str | None:
    """Return a text as it is, and None for anything else."""
    return value if isinstance(value, str) else None


def every(events: Sequence[Event], name: str) -> list[Event]:
    """Return the events of a name."""
    return [event for event in events if event.get("event") == name]


def first(events: Sequence[Event], name: str) -> Event:
    """Return the first event of a name, empty if there is none."""
    return next((event for event in events if event.get("event") == name), {})


def last(events: Sequence[Event], name: str) -> Event:
    """Return the last event of a name, empty if there is none."""
    return first(list(reversed(events)), name)


def signals(events: Sequence[Event]) -> list[str]:
    """Name the signals that asked for the end, such as TERM."""
    names = [text(event.get("signal")) for event in every(events, "signal")]
    return [name.removeprefix("SIG") for name in names if name]


def requests(events: Sequence[Event]) -> list[Event]:
    """Return the requests to end, or to save, that reached the script, and not only a rank."""
    return [event for event in every(events, "signal") if event.get("source") != "trainer"]


def ends(events: Sequence[Event]) -> Ends:
    """Collect the ranks' starts and ends."""
    found = Ends({}, {}, [], [], [], set())
    ended: list[tuple[int, Event]] = []
    for event in events:
        rank, name = integer(event.get("rank")), event.get("event")
        if rank is None or name not in ("rank_up", "rank_end"):
            continue
        found.nodes[rank] = text(event.get("node")) or found.nodes.get(rank)
        if name == "rank_end":
            ended.append((rank, event))
        else:
            ended = [one for one in ended if one[0] != rank]  # it is back, by a step of its own
            found.up[rank] = found.nodes[rank]
    for rank, event in ended:
        found.up.pop(rank, None)
        if event.get("oom") is True:
            found.oom.add(rank)
        end = end_of(event)
        if end is not None:
            is_requested = event.get("requested") is True
            kind = found.requested if is_requested else found.failed
            (kind if end.code else found.finished).append(end)
    return found


def end_of(event: Event) -> End | None:
    """Read the end that an event reports; None if it does not say with which code."""
    code = integer(event.get("code"))
    if code is None or not 0 <= code <= _MAX_CODE:
        return None
    signal = text(event.get("signal")) or codes.signal_name(code)
    return End(integer(event.get("rank")), text(event.get("node")), code, signal)


def reported_errors(events: Sequence[Event]) -> dict[int | None, Event]:
    """Return each rank's own `failure` event: its first that says something."""
    found = [event for event in every(events, "failure") if text(event.get("error")) is not None]
    return {integer(event.get("rank")): event for event in reversed(found)}


def reported_causes(failure: Event) -> str:
    """Return the lines of a `failure` event: the error, and what its traceback names before it."""
    return "\n".join(filter(None, (text(failure.get(key)) for key in ("error", "causes"))))
