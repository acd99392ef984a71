"""What the trainer appends to a run's logs; a disk that is full costs a warning, not the run."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from rundir import channel, events
from trainer.text import warn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


class EventLog:
    """Reports the trainer's events; the only place that knows where they go."""

    def __init__(self, *, path: Path, attempt: int, host: str) -> None:
        self._path = path
        deliver = channel.reporter(str(path.parent), host)
        self._log = events.EventLog(deliver, "trainer", attempt, host)

    def write(self, event: str, **further: object) -> None:
        """Report an event with the keys of the contract, in its order."""
        with _warning_of(self._path):
            self._log.write(event, **further)


def append_line(path: Path, line: Mapping[str, object]) -> None:
    """Append `line` as JSON to a file that no other process writes."""
    with _warning_of(path):
        events.append(str(path), events.encode(line), is_shared=False)


@contextlib.contextmanager
def _warning_of(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        warn(f"could not write to {path}: {error}")
