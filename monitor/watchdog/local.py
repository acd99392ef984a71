"""The watchdog of this node, put together."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from monitor.watchdog.actions import TERM_S, Actions
from monitor.watchdog.bounded import Bounded
from monitor.watchdog.event_channel import EventChannel
from monitor.watchdog.heartbeats import read_heartbeats
from monitor.watchdog.local_ranks import LocalRanks
from monitor.watchdog.node import Watchdog
from monitor.watchdog.observer import RankObserver
from monitor.watchdog.timeouts import Timeouts
from rundir import channel
from rundir.events import EventLog
from rundir.paths import RunDir

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitor.watchdog.settings import WatchSettings

_LEAVE_S = TERM_S + 0.5


class LocalWatchdog:
    """Runs the watchdog in a thread of the recorder's process, which it does not disturb."""

    def __init__(self, settings: WatchSettings, emit: Callable[[str], None]) -> None:
        self._settings = settings
        self._emit = emit
        self._files = Bounded("files")
        self._end = threading.Event()
        deliver = channel.reporter(settings.run_dir, settings.node)
        self._channel = EventChannel(
            EventLog(deliver, "monitor", settings.attempt, settings.node),
            RunDir(settings.run_dir).events,
            self._files,
        )
        timeouts = Timeouts(settings.hang_timeout_s)
        ranks = LocalRanks(settings, self._files, Bounded("memory"))
        self.observer = RankObserver(ranks, timeouts)
        self._actions = Actions(settings, self.observer, self._files, emit)
        self.watchdog = Watchdog(settings, self._actions, self._channel, timeouts.poll_s())

    def run(self) -> None:
        """Watch until `end` is called or there is nothing left to decide."""
        delay_s: float | None = 0.0
        while delay_s is not None and not self._end.wait(delay_s):
            try:
                delay_s = self.watchdog.tick()
            except Exception as error:  # noqa: BLE001 - the monitor never fails the job
                self._emit(f"watchdog: {type(error).__name__}: {error}: going on")
                delay_s = 5.0

    def report_last_heartbeats(self) -> None:
        """Report where each rank was at the end; no node waits for a report of this one then."""
        now_s = time.monotonic()
        ranks = {
            rank: {
                "step": heartbeat.step,
                "phase": heartbeat.phase,
                "age_s": round(now_s - heartbeat.time_ns / 1e9, 3),
            }
            for rank, heartbeat in sorted(read_heartbeats(self._settings.heartbeat_dir).items())
        }
        settings = self._settings
        self._channel.report(
            "last_beats", node=settings.node, node_rank=settings.node_rank, ranks=ranks
        )

    def end(self) -> None:
        """Watch no more; ranks that are being ended are ended first."""
        self._end.set()
        deadline_s = time.monotonic() + _LEAVE_S
        while self._actions.is_ending and time.monotonic() < deadline_s:
            time.sleep(0.02)
