"""The run's events, where the watchers of all nodes meet, on a file system that may hang.

Everything here is done in a thread; who calls waits a moment at most, and goes on without.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from monitor import events as event_log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitor.events import Event, EventLog
    from monitor.watchdog.bounded import Bounded

_LIMIT_S = 2.0
_FIRST_BYTES = 2**20  # of what others wrote before: this attempt's beginning is in it
_WORDS = (b'"hang_report"', b'"verdict"', b'"last_beats"', b'"rank_up"', b'"monitor_up"')


class EventBoard:
    """Tells and hears events of `events.jsonl`."""

    def __init__(self, log: EventLog, files: Bounded) -> None:
        """Meet in `log`, by calls made through `files`."""
        self._log = log
        self._files = files
        self._offset: int | None = None

    def tell(self, event: str, **keys: object) -> None:
        """Append an event; if that hangs it is appended once it no longer does."""
        self._files.ask(lambda: self._log.append(event, **keys), _LIMIT_S)

    def hear(self) -> Sequence[Event]:
        """Read the events of interest that have been added; none while the file cannot be read."""
        heard = self._files.question(self._read, _LIMIT_S)
        if heard is None:
            return []
        data, self._offset = heard
        lines = [line for line in data.split(b"\n") if any(word in line for word in _WORDS)]
        return event_log.read(b"\n".join(lines))[0]

    def _read(self) -> tuple[bytes, int]:
        """Read on to the last whole line; give also where to read on next time.

        The file is opened anew each time, so that NFS asks the server how long it is.
        """
        fd = os.open(self._log.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            offset = max(0, size - _FIRST_BYTES) if self._offset is None else self._offset
            data = os.pread(fd, max(0, size - offset), offset)
        finally:
            os.close(fd)
        whole = data[: data.rfind(b"\n") + 1]
        return whole, offset + len(whole)
