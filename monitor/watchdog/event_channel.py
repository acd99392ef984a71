"""The run's events, by which the nodes and the supervisor talk; the file system may hang.

Everything here is done in a thread; the caller waits a moment at most, and goes on without.
"""

from __future__ import annotations

import contextlib
import os
import queue
from typing import TYPE_CHECKING

from rundir import events as event_log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitor.watchdog.bounded import Bounded
    from rundir.events import Event, EventLog

_LIMIT_S = 3.0  # longer than an event waits for a lock
_FIRST_BYTES = 2**20  # of what others wrote before: this attempt's beginning is in it
_WORDS = (b'"hang_report"', b'"verdict"', b'"last_beats"', b'"rank_up"', b'"monitor_up"')


class EventChannel:
    """Reports events, and receives those of `events.jsonl`."""

    def __init__(self, log: EventLog, path: str, files: Bounded) -> None:
        """Report by `log` and read the file at `path`, by calls made through `files`."""
        self._log = log
        self._path = path
        self._files = files
        self._offset: int | None = None  # the thread's own
        self._read_data: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def report(self, event: str, **keys: object) -> None:
        """Report an event; if that hangs it is reported once it no longer does."""
        self._files.ask(lambda: self._log.write(event, **keys), _LIMIT_S)

    def receive(self) -> Sequence[Event]:
        """Take the events of interest that have been added; none while the file cannot be read.

        What came too late to be waited for is taken now.
        """
        self._files.question(self._read, _LIMIT_S)
        read: list[bytes] = []
        with contextlib.suppress(queue.Empty):
            while True:
                read.append(self._read_data.get_nowait())
        lines = [x for x in b"".join(read).split(b"\n") if any(word in x for word in _WORDS)]
        return event_log.read(b"\n".join(lines))[0]

    @property
    def is_stuck(self) -> bool:
        """Whether the files hang: what others may have reported is not known then."""
        return self._files.is_stuck

    def _read(self) -> None:
        """Read on to the last whole line; only the thread of the files does, one call at a time.

        The file is opened anew each time, so that NFS asks the server how long it is.
        """
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            offset = max(0, size - _FIRST_BYTES) if self._offset is None else self._offset
            data = os.pread(fd, max(0, size - offset), offset)
        finally:
            os.close(fd)
        whole = data[: data.rfind(b"\n") + 1]
        self._offset = offset + len(whole)
        self._read_data.put(whole)
