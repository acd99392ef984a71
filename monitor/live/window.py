"""What a live view knows of a run, as the rules evaluate it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from monitor.analysis import engine
from monitor.analysis.rules import LogState, Window
from monitor.live.snapshot import interval_s
from monitor.logs.series import GpuSeries, PlacedEvent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitor.live.log import LiveLog
    from monitor.live.run import LiveRun
    from monitor.live.track import Track


def window(
    logs: Sequence[LiveLog], run: LiveRun | None = None, now_s: float = 0.0, *, is_over: bool = True
) -> Window:
    """Collect the last samples of all GPUs, what happened to them, and what the run reports."""
    columns = engine.columns()
    with_tracks = [log for log in logs if log.tracks]
    tracks = [track for log in with_tracks for track in log.tracks if track.num_samples]
    return Window(
        name=None,
        gpus=tuple(_series(track, columns) for track in tracks),
        # a copy: the log may be read meanwhile
        log_events=tuple(
            PlacedEvent(log.host, log.job, m) for log in logs for m in tuple(log.events)
        ),
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


def _series(track: Track, columns: frozenset[str]) -> GpuSeries:
    """Return the readings in the order of time, as every reader of a whole log does."""
    time_s = track.time_s()
    order = np.argsort(time_s, kind="stable")  # a clock may have been set
    return GpuSeries(
        host=track.host,
        gpu=track.gpu,
        job=track.job,
        time_s=time_s[order],
        values={name: track.column(name)[order] for name in track.names if name in columns},
        facts=track.facts,
    )
