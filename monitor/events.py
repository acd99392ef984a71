"""The run's log of events: how the monitor reports its own, and how all of them are read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rundir import channel, events

if TYPE_CHECKING:
    from collections.abc import Callable

Event = dict[str, Any]
read = events.read


@dataclass(frozen=True, slots=True)
class EventLog:
    """Where to report events, and as whom.

    Args:
        path: `events.jsonl` of the run.
        attempt: the number of this start of the run, from 1.
        host: the node's name.
        now: the time, with an offset.

    """

    path: str
    attempt: int
    host: str
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def append(self, event: str, **further: object) -> None:
        """Report one event, its keys in the order of the contract.

        Raises:
            OSError: it could not be written.

        """
        deliver = channel.reporter(self.path.rpartition("/")[0], self.host)
        log = events.EventLog(
            deliver, "monitor", self.attempt, self.host, lambda: self.now().timestamp()
        )
        log.write(event, **further)
