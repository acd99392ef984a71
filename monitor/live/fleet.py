"""All that is watched: a run's own files and its nodes' logs, polled together."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from monitor.live import log as live_log
from monitor.live.judge import judge
from monitor.live.log import LiveLog
from monitor.live.run import LiveRun, Progress

if TYPE_CHECKING:
    from monitor.diagnosis.findings import Finding
    from monitor.live.target import Target

_FIRST_JUDGED_S = 2.0  # the first pictures come before
_JUDGED_S = 30.0
_LOOK_AROUND_S = 2.0  # for logs that appeared


class Fleet:
    """Who looks at the files. What it has read may be looked at while it reads on.

    Args:
        target: what to watch.

    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.logs: tuple[LiveLog, ...] = ()
        self.run = None if target.run_dir is None else LiveRun(target.run_dir)
        self.progress: Progress | None = None
        self.problem: str | None = None
        """Why the folder cannot be read; None: it can."""
        self.findings: tuple[Finding, ...] = ()
        """What the rules of `diagnose` found last."""
        self.polled_s: float | None = None
        """When a look last came to its end, monotonic."""
        self._looked_around_s = -_LOOK_AROUND_S
        self._judge_at_s = time.monotonic() + _FIRST_JUDGED_S
        self._by_path: dict[str, LiveLog] = {}

    def poll(self, *, is_only: bool = False) -> None:
        """Take up what is new, and what appeared; an error of ours is told, and ends nothing.

        Args:
            is_only: there will be no other look, so that all there is to say is said now.

        """
        try:
            self._poll()
            if is_only or time.monotonic() >= self._judge_at_s:
                self._judge()
        except Exception as error:  # noqa: BLE001 - a view goes on with what it has
            self.problem = f"reading failed: {type(error).__name__}: {error}"
        self.polled_s = time.monotonic()

    def _poll(self) -> None:
        if self.run is not None:
            self.run.poll()
            self.progress = self.run.progress()
        if time.monotonic() >= self._looked_around_s + _LOOK_AROUND_S:
            self._look_around()
            self._looked_around_s = time.monotonic()
        live_log.poll(self.logs)

    def _judge(self) -> None:
        """Look at what has been read by the rules of `diagnose`."""
        self.findings = tuple(judge(self.logs))
        self._judge_at_s = time.monotonic() + _JUDGED_S

    def _look_around(self) -> None:
        """Find logs. One that vanished is kept: it may be on its way back."""
        try:
            paths = self.target.logs(self.run.job_ids if self.run is not None else [])
        except OSError as error:
            self.problem = error.strerror or str(error)
            return
        self.problem = None
        if self.run is not None and paths and not set(paths) & set(self._by_path):
            self._by_path.clear()  # another job goes on with the run, perhaps on other nodes
        for path in paths:
            if path not in self._by_path:
                self._by_path[path] = LiveLog(path)
        self.logs = tuple(self._by_path[path] for path in sorted(self._by_path))
