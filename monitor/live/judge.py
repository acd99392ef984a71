"""What the rules of `diagnose` find in the readings that a view knows: what lasts until now."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from monitor.diagnosis.diagnose import RULES
from monitor.diagnosis.thresholds import Thresholds
from monitor.logs.series import GpuSeries, Run

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from monitor.diagnosis.findings import Finding
    from monitor.live.log import LiveLog
    from monitor.live.track import Track

LOOKED_AT = ("hung", "data", "straggler", "clock", "pcie", "memory", "unbalanced")
"""Rules that look at a time, or at many GPUs; the view sees for itself what the others would."""

_NOW_S = 300.0
"""A finding that ended earlier is over: `diagnose` tells of it."""

_RULES = tuple(rule for rule in RULES if rule.name in LOOKED_AT)
_COLUMNS = frozenset(name for rule in _RULES for name in rule.columns)


def judge(logs: Iterable[LiveLog]) -> list[Finding]:
    """Look at the last readings of all GPUs; their findings that are not over yet."""
    tracks = [track for log in logs for track in log.tracks if track.num_samples]
    run = Run(name=None, gpus=tuple(_series(track) for track in tracks))
    at = Thresholds()
    with np.errstate(invalid="ignore", divide="ignore"):
        found = [finding for rule in _RULES for finding in rule.check(run, at)]
    newest_s = {(series.host, series.gpu): float(series.time_s[-1]) for series in run.gpus}
    return [finding for finding in found if not _is_over(finding, newest_s)]


def _series(track: Track) -> GpuSeries:
    """Give the readings in the order of time, as every reader of a whole log has them."""
    time_s = track.time_s()
    order = np.argsort(time_s, kind="stable")  # a clock may have been set
    names = [name for name in track.names if name in _COLUMNS]
    return GpuSeries(
        host=track.host,
        gpu=track.gpu,
        job=track.job,
        time_s=time_s[order],
        values={name: track.column(name)[order] for name in names},
        facts=track.facts,
    )


def _is_over(finding: Finding, newest_s: Mapping[tuple[str, int | None], float]) -> bool:
    now_s = newest_s.get((finding.host or "", finding.gpu))
    if finding.end_s is None or now_s is None:
        return False
    return finding.end_s < now_s - _NOW_S
