"""All that is watched: a run's own files and its nodes' logs, polled together."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from monitor.analysis.engine import columns, evaluate
from monitor.analysis.findings import summaries
from monitor.analysis.rules import LogState, Window
from monitor.live import log as live_log
from monitor.live.log import LiveLog, Track
from monitor.live.run import LiveRun, Progress
from monitor.live.snapshot import interval_s
from monitor.logs import clock
from monitor.logs.decode import NO_TIME
from monitor.logs.series import GpuSeries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitor.analysis.findings import Summary
    from monitor.live.target import Target

_FIRST_EVALUATION_S = 1.0  # the first pictures come before
_SHORTEST_S, _LONGEST_S = 2.0, 30.0  # between two evaluations
_SHARE = 0.02  # of a core, for evaluating rules
_LIST_S = 2.0  # between two searches for logs that appeared


class Fleet:
    """Reads all files. What it has read may be shown while it reads on."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.logs: tuple[LiveLog, ...] = ()
        self.run = None if target.run_dir is None else LiveRun(target.run_dir)
        self.progress: Progress | None = None
        self.problem: str | None = None
        """Why the folder cannot be read; None: it can."""
        self.alerts: tuple[Summary, ...] = ()
        """What the rules found last, the worst first."""
        self.polled_s: float | None = None
        """When a poll last ended, monotonic."""
        self._listed_s = -_LIST_S
        self._evaluate_at_s = time.monotonic() + _FIRST_EVALUATION_S
        self._by_path: dict[str, LiveLog] = {}

    def poll(self, *, is_only: bool = False) -> None:
        """Read what is new and what appeared; an error of ours is shown, and ends nothing.

        Args:
            is_only: there will be no other poll, so the rules are evaluated now.

        """
        try:
            self._poll()
            if is_only or time.monotonic() >= self._evaluate_at_s:
                self._evaluate()
        except Exception as error:  # noqa: BLE001 - a view goes on with what it has
            self.problem = f"reading failed: {type(error).__name__}: {error}"
        self.polled_s = time.monotonic()

    def _poll(self) -> None:
        if self.run is not None:
            self.run.poll()
            self.progress = self.run.progress()
        if time.monotonic() >= self._listed_s + _LIST_S:
            self._list()
            self._listed_s = time.monotonic()
        live_log.poll(self.logs)

    def _evaluate(self) -> None:
        """Evaluate the rules on what has been read; the more GPUs, the more rarely."""
        began_s = time.thread_time()
        is_over = self.progress is not None and self.progress.is_over
        now = window(self.logs, self.run, time.monotonic(), is_over=is_over)
        self.alerts = tuple(summaries(now, evaluate(now)))
        pause_s = (time.thread_time() - began_s) / _SHARE
        self._evaluate_at_s = time.monotonic() + min(max(_SHORTEST_S, pause_s), _LONGEST_S)

    def _list(self) -> None:
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


def window(
    logs: Sequence[LiveLog], run: LiveRun | None = None, now_s: float = 0.0, *, is_over: bool = True
) -> Window:
    """Collect the last samples of all GPUs, what happened to them, and what the run reports."""
    wanted = columns()
    with_tracks = [log for log in logs if log.tracks]
    tracks = [track for log in with_tracks for track in log.tracks if track.num_samples]
    return Window(
        name=None,
        gpus=tuple(_series(track, wanted) for track in tracks),
        # a copy: the log may be read meanwhile
        log_events=tuple(event for log in logs for event in tuple(log.events)),
        metrics=() if run is None else run.intervals,
        events=() if run is None else (*run.ranks, *run.notes),
        logs=() if is_over else tuple(_state(log, now_s) for log in with_tracks),
    )


def _state(log: LiveLog, now_s: float) -> LogState:
    return LogState(
        host=log.host,
        job=log.job,
        interval_s=interval_s(log.tracks[0]),
        quiet_s=now_s - log.alive_s,
        is_there=log.is_there,
    )


def _series(track: Track, wanted: frozenset[str]) -> GpuSeries:
    """Return the readings as they came, with times that never go back, as of a whole log."""
    time_s = track.time_s()
    if (np.diff(time_s) < 0).any():  # a clock was set, or midnight passed a log without dates
        wall_s = np.where(np.isnan(time_s), NO_TIME, time_s).astype(np.int64)
        unknown = np.full(len(time_s), np.nan)
        shift_s = clock.shifts_s(wall_s, track.column("mono"), unknown)
        time_s = time_s if shift_s is None else time_s + shift_s
    return GpuSeries(
        host=track.host,
        gpu=track.gpu,
        job=track.job,
        time_s=time_s,
        values={name: track.column(name) for name in track.names if name in wanted},
        facts=track.facts,
    )
