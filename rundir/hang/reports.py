"""What the watchdogs of the nodes report of ranks that stand still: the `hang_report` events."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rundir.events import Event

NO_GPU = "no GPU"
STATES = {
    "R": "running",
    "S": "asleep",
    "D": "waiting for the kernel, such as for a file system",
    "T": "stopped by a signal",
    "t": "held by a debugger",
}
"""The state of a process, as /proc has it, in words."""

# Phases in the order in which they follow one another while `step` and `collective` stay as they
# are: a collective counts `collective` up, and what follows it until the next comes after it.
_ORDER = (
    "start",
    "load",
    "agree",
    "log",
    "validate",
    "save",
    "data",
    "forward",
    "backward",
    "update",
    "end",
)
_STILL_S = 60.0


@dataclass(frozen=True)
class RankReport:
    """Where one rank is, as its node's watchdog sees it; None where it is unknown."""

    rank: int
    local_rank: int | None = None
    pid: int | None = None
    gpu: str = NO_GPU
    step: int | None = None
    phase: str | None = None
    collective: int | None = None
    age_s: float = 0.0
    """How long it has given no sign of life."""
    limit_s: float | None = None
    """How long it may; None: for ever."""
    hung: bool = False
    """Whether that is too long."""
    state: str | None = None
    """As in /proc; None: it has ended."""
    pattern: str | None = None
    """What its GPU shows: `waiting`, `working`, `idle`."""
    top: str | None = None
    stack: str | None = None
    waiting: bool = False
    """Whether its stack stands in a call that waits for other ranks."""

    def is_still(self) -> bool:
        """Whether it has given no sign of life for a good part of what it may take."""
        usual_s = _STILL_S if self.limit_s is None else min(_STILL_S, self.limit_s / 2)
        return self.hung or self.age_s >= usual_s

    def position(self) -> tuple[int, int, int]:
        """How far it has come; of a rank without a heartbeat nothing is known: it is behind all."""
        if self.step is None or self.collective is None:
            return (-1, -1, -1)
        order = _ORDER.index(self.phase) if self.phase in _ORDER else len(_ORDER)
        return (self.step, self.collective, order)


@dataclass(frozen=True)
class NodeReport:
    """What one node's watchdog reports."""

    node: str
    node_rank: int = 0
    ranks: tuple[RankReport, ...] = ()
    reaches_master: bool | None = None
    """Whether a connection to MASTER_ADDR:MASTER_PORT opens; None: not tried."""
    traces: tuple[str, ...] = ()
    """Dumps of torch's flight recorder that lie in `debug/`."""
    suspicious: bool = False
    """Whether this node calls for a verdict; else it reports because another one does."""

    def to_event(self) -> dict[str, Any]:
        """Return the keys of a `hang_report` event."""
        return asdict(self)


def from_event(event: Event) -> NodeReport | None:
    """Read a `hang_report` event; None if it is none."""
    reaches = event.get("reaches_master")
    try:
        return NodeReport(
            node=str(event["node"]),
            node_rank=int(event["node_rank"]),
            ranks=tuple(_rank(rank) for rank in event["ranks"]),
            reaches_master=reaches if isinstance(reaches, bool) else None,
            suspicious=event.get("suspicious") is not False,
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("rank", "local_rank", "pid", "step", "collective"), (int,)),
    **dict.fromkeys(("age_s", "limit_s"), (int, float)),
    **dict.fromkeys(("hung", "waiting"), (bool,)),
    **dict.fromkeys(("gpu", "phase", "state", "pattern", "top", "stack"), (str,)),
}
_REQUIRED = ("rank", "gpu", "age_s", "hung", "waiting")


def _rank(keys: dict[str, Any]) -> RankReport:
    """Read one rank's report; TypeError if a value is of another type."""
    known = {key: value for key, value in keys.items() if key in _TYPES}
    for key, value in known.items():
        if not isinstance(value, _TYPES[key]) and (value is not None or key in _REQUIRED):
            raise TypeError(key)
    return RankReport(**known)
