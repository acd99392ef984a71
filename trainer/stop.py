"""Signals that ask the run to stop: a handler sets a flag, the loop acts at a step's end."""

from __future__ import annotations

import os
import signal
import time

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_SAME_REQUEST_S = 2.0
"""Slurm and the launcher may both deliver one request; within this time it counts as one."""


class StopRequest:
    """The flag. `signal_name` is None until somebody asks."""

    def __init__(self) -> None:
        self.signal_name: str | None = None
        self._first_s = 0.0

    def install(self) -> None:
        """Take SIGTERM, SIGINT and SIGUSR1; only the main thread may."""
        for number in _SIGNALS:
            signal.signal(number, self._handle)

    def _handle(self, number: int, _frame: object) -> None:
        if self.signal_name is None:
            self.signal_name = signal.Signals(number).name.removeprefix("SIG")
            self._first_s = time.monotonic()
        elif time.monotonic() - self._first_s > _SAME_REQUEST_S:
            os._exit(128 + number)  # asked twice: no checkpoint, no goodbye
