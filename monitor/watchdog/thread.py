"""The watchdog beside the recorder: a thread of its own, which neither waits for the other."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

from rundir.hang import ASK

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitor.logs.sample import Reading
    from monitor.watchdog.local import LocalWatchdog
    from monitor.watchdog.settings import WatchSettings

_DELAY_S = 0.5  # the first lines of the recorder's log come before the watchdog's imports


class WatchdogThread:
    """Watches the ranks of this node while something else records."""

    def __init__(self, settings: WatchSettings | None, emit: Callable[[str], None]) -> None:
        self._settings = settings
        self._emit = emit
        self._ended = threading.Event()
        self._watchdog: LocalWatchdog | None = None

    def start(self) -> None:
        """Start the thread, unless there is nothing to decide."""
        if self._settings is not None and self._settings.hang_timeout_s != 0:
            if self._settings.is_supervised:
                signal.signal(ASK, lambda *_: self._ask())
            threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def see_gpus(self, reading: Reading) -> None:
        """Take what the recorder has just read."""
        if self._watchdog is not None:
            self._watchdog.observer.see_gpus(reading)

    def end(self) -> None:
        """Watch no more, and report where the ranks were."""
        self._ended.set()
        if self._settings is None:
            return
        watchdog = self._watchdog or self._build(self._settings)
        watchdog.report_last_heartbeats()
        watchdog.end()

    def _run(self) -> None:
        if self._settings is not None and not self._ended.wait(_DELAY_S):
            self._watchdog = self._build(self._settings)
            self._watchdog.run()

    def _build(self, settings: WatchSettings) -> LocalWatchdog:
        from monitor.watchdog.local import LocalWatchdog  # noqa: PLC0415 - not before the log's first lines

        return LocalWatchdog(settings, self._emit)

    def _ask(self) -> None:
        if self._watchdog is not None:
            self._watchdog.watchdog.ask()
