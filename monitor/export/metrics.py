"""Logs and run directories to metrics: what lives now, and nothing that only seems to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from monitor.export import find, gpus
from monitor.export import run as export_run
from monitor.export.openmetrics import Metric, Metrics
from monitor.logs import constants, files, gutil
from monitor.logs.newest import Newest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitor.logs.newest import NodeNow

_MAX_AGE_S = 300.0

EXPORT_TIME = Metric("ddp_export_timestamp_seconds", "When this was written, since 1970.")
EXPORT_LOGS = Metric("ddp_export_logs", "Logs by state; only fresh ones are exported.")


class Collector:
    """Reads the same paths again and again; of each log it reads only what is new.

    Args:
        paths: logs, run directories, and directories that hold logs or run directories.
        max_age_s: what has reported nothing for longer is left out; None: 300 s, or five intervals
            of a log, whichever is more.

    """

    def __init__(self, paths: Sequence[str], max_age_s: float | None) -> None:
        self._paths = paths
        self._max_age_s = max_age_s
        self._logs: dict[str, Newest] = {}

    def collect(self, now_s: float) -> Metrics:
        """Read once, at `now_s` since 1970.

        Raises:
            UserError: there is neither a log nor a run, or a log that was named cannot be read.

        """
        logs, runs = find.find(self._paths)
        self._logs = {path: self._logs.get(path) or Newest(path) for path in logs}
        metrics, fresh, states = Metrics(), [], dict.fromkeys(("fresh", "stale", "unreadable"), 0)
        for log in self._logs.values():
            node, state = self._read(log, now_s)
            states[state] += 1
            fresh += [node] if node is not None else []
        gpus.add(metrics, fresh)
        self._add_runs(metrics, runs, fresh, now_s)
        metrics.put(EXPORT_TIME, {}, now_s)
        for state, num in states.items():
            metrics.put(EXPORT_LOGS, {"state": state}, num)
        return metrics

    def _read(self, log: Newest, now_s: float) -> tuple[NodeNow | None, str]:
        try:
            node = log.poll()
            is_empty = node is None and os.path.getsize(log.path) == 0
        except OSError as error:
            if log.path in self._paths:
                raise files.unreadable(log.path, error) from error
            return None, "unreadable"  # another process's business, or gone since it was listed
        if node is None:
            return None, "stale" if is_empty else "unreadable"
        is_fresh = now_s - node.newest.time_s <= self._limit_s(node)
        return (node, "fresh") if is_fresh else (None, "stale")

    def _limit_s(self, node: NodeNow) -> float:
        if self._max_age_s is not None:
            return self._max_age_s
        interval_s = gutil.parse_number(node.facts.get("interval_s")) or 0.0
        return max(_MAX_AGE_S, constants.longest_s(interval_s))

    def _add_runs(
        self, metrics: Metrics, runs: Sequence[str], fresh: Sequence[NodeNow], now_s: float
    ) -> None:
        """Add runs that reported lately, or whose nodes still do, such as those that hang."""
        jobs = {node.job: node.facts.get("user") for node in fresh if node.job}
        max_age_s = _MAX_AGE_S if self._max_age_s is None else self._max_age_s
        for run in runs:
            is_recent = now_s - files.written_s(run) <= max_age_s
            if is_recent or export_run.job_in(export_run.events_of(run)) in jobs:
                export_run.add(metrics, run, jobs, now_s=now_s)
