"""events.jsonl: this process appends what its ranks report.

What others put there by themselves, or into a file of their node's own, is taken when an attempt
ends: nothing of it is needed before.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from jobs.messages import info
from jobs.sink import Sink
from jobs.supervisor.reports import Reports
from rundir import events, plain

if TYPE_CHECKING:
    from jobs.loop import Loop
    from rundir.paths import RunDir

_STUCK_S = 2.0
"""A file system that takes longer to append is taken to stall."""
_MAX_PENDING = 256 << 20


class Journal:
    """The run's events, for this job.

    Args:
        loop: Where reports arrive.
        files: The run directory.
        host: This node's name.

    """

    def __init__(self, loop: Loop, files: RunDir, host: str) -> None:
        """Nothing is written yet."""
        self._loop = loop
        self._files = files
        self._log = events.EventLog(self.add, "prelaunch", 0, host)
        self._sink = Sink(self._append, loop.wake, _MAX_PENDING)
        self._offset = 0
        self.reports = Reports(0)

    def open(self, attempt: int) -> None:
        """Begin an attempt: what was written before is the past, and may be large."""
        self._log.attempt = attempt
        self.reports = Reports(attempt)
        try:
            self._offset = plain.size_bytes(self._files.events)
        except OSError:
            self._offset = 0

    @property
    def is_stuck(self) -> bool:
        """Whether the file system stalls: nodes may then be unable to report."""
        return self._sink.writing_s > _STUCK_S

    def write(self, event: str, **keys: Any) -> None:  # noqa: ANN401 -- whatever JSON takes
        """Report an event of this script's own."""
        self._log.write(event, **keys)

    def add(self, line: bytes) -> None:
        """Take a report that arrived: it is known, and it is written."""
        self.reports.add(line)
        self._sink.put(line)

    def _append(self, data: bytes) -> None:
        try:
            events.append(self._files.events, data)
        except OSError as error:
            info(f"could not append to {self._files.events}: {error.strerror}; going on")

    def close(self) -> None:
        """End an attempt: take what others wrote, and what nodes could not deliver."""
        self.flush()
        for line in self._read_new().split(b"\n"):
            if not self.reports.knows(line):
                self.reports.add(line)
        for path, data in events.undelivered(self._files.path).items():
            for line in data.splitlines(keepends=True):
                if not self.reports.knows(line):
                    self.add(line)
            self.flush()
            with suppress(OSError):
                os.unlink(path)

    def _read_new(self) -> bytes:
        """Read what was appended in this attempt. An open has NFS ask the server."""
        with suppress(OSError), plain.open_plain(self._files.events) as file:
            file.seek(self._offset)
            return file.read()
        return b""

    def flush(self) -> None:
        """Wait until all is written. Signals are handled while a file system stalls."""
        self._loop.run(lambda: self._sink.is_idle)
        num_lost = self._sink.take_lost()
        if num_lost:
            info(
                f"{self._files.events} lacks {num_lost} bytes of reports: its disk stalled too long"
            )
