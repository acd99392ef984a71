"""Rules on the watching itself: gaps in a log, and logs that end before the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from monitor.analysis import readings
from monitor.analysis.findings import Finding
from monitor.analysis.readings import Stretch
from monitor.analysis.rules import TIMES, Window, rule
from monitor.logs import clock
from monitor.logs.series import of_hosts
from monitor.runs.history import times
from monitor.words import and_more, minutes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from monitor.analysis.thresholds import Thresholds
    from monitor.logs.series import GpuSeries, Run


_QUARTER_S = 900
_NODE_IS_GONE = (
    "the node, its monitor or its disk is gone: see `python -m monitor why` and the node's state"
    " (sinfo -N)"
)


_GPU_IS_GONE = (
    "see whether nvidia-smi on the node lists it, and dmesg for XID 79 and its like; if it is gone,"
    " exclude the node (sbatch --exclude) and report it to the administrators"
)


@rule(
    "gap",
    "nothing was written for a while, or no more of a node or GPU where others go on",
    needs=(TIMES,),
    thresholds=("gap_intervals", "gap_seconds"),
    scope="whole run",
)
def _gap(run: Run, at: Thresholds) -> Iterator[Finding]:
    timed = [one for one in run.gpus if one.num_samples and not np.isnan(one.time_s).any()]
    nodes = of_hosts(timed)
    starts_s = np.array(times(e for e in run.events if e.get("event") == "start"))
    for series in nodes:
        yield from _gaps(series, starts_s, at)
    jobs: dict[str, list[GpuSeries]] = {}
    for series in nodes:
        if series.job is not None:
            jobs.setdefault(series.job, []).append(series)
    at_last = _nodes_at_last(run)
    for job, group in jobs.items():
        yield from _ended_early(group, at_last.get(job, set()), at)
    yield from _gpus_ended_early(timed, at)
    yield from _missing(run)


def _longest_s(usual_s: NDArray[np.float64] | float, at: Thresholds) -> NDArray[np.float64]:
    """Give how long a log may not grow: no gap is shorter."""
    return np.asarray(np.fmax(at.gap_seconds, at.gap_intervals * usual_s))


def _gaps(series: GpuSeries, starts_s: NDArray[np.float64], at: Thresholds) -> Iterator[Finding]:
    """Find times without a sample in a node's log, other than those between two starts."""
    steps_s = np.diff(series.time_s)
    usual_s = clock.usual_s(np.append(np.nan, steps_s), series.nominal_s)[1:]
    found = [
        begin
        for begin in np.flatnonzero(steps_s > _longest_s(usual_s, at)).tolist()
        if not _is_rest(series, begin, starts_s)
    ]
    if not found:
        return
    worst = max(found, key=lambda begin: float(steps_s[begin]))
    gap_s = float(steps_s[worst])
    yield readings.finding(
        "hint",
        series,
        Stretch(worst + 1, worst + 2, gap_s),
        f"nothing written for {minutes(gap_s)}, where a sample is usual every"
        f" {usual_s[worst]:g} s{and_more(len(found) - 1, 'gap')}",
        "a requeued job has such a gap; else see what the node did then, and whether the disk was"
        " full",
        weight=gap_s,
        of_host=True,
    )


def _is_rest(series: GpuSeries, before: int, starts_s: NDArray[np.float64]) -> bool:
    """Whether the job itself was at rest: one start had ended, the next not begun."""
    begin_s, end_s = series.time_s[before], series.time_s[before + 1] + series.interval_s
    return bool(((begin_s <= starts_s) & (starts_s <= end_s)).any())


def _nodes_at_last(run: Run) -> dict[str, set[str]]:
    """Give the nodes of each job's last start."""
    return {
        str(event.get("job_id")): {_short(str(node)) for node in event["nodes"]}
        for event in run.events
        if event.get("event") == "start" and isinstance(event.get("nodes"), list)
    }


def _ended_early(nodes: list[GpuSeries], at_last: set[str], at: Thresholds) -> Iterator[Finding]:
    """Find nodes whose log ends long before those of the job's other nodes.

    The job may have left some itself, as by a requeue: its last start is on those `at_last`. A node
    whose clock is off begins as much before the others as it ends.
    """
    zones_s = np.array([_zone_s(series, nodes) for series in nodes])
    begins_s, ends_s = np.array([series.time_s[[0, -1]] for series in nodes]).T - zones_s
    for series, begin_s, end_s in zip(nodes, begins_s, ends_s, strict=True):
        limit_s = _longest_s(series.interval_s, at)
        is_later = ends_s > end_s + limit_s
        earlier_s = (begins_s - begin_s) - (ends_s - end_s)
        is_left = at_last and _short(series.host) not in at_last
        if (np.abs(earlier_s[is_later]) > limit_s).any() and not is_left:
            missing_s = float(ends_s.max() - end_s)
            text = f"its log ends {minutes(missing_s)} before that of other nodes of the job"
            yield _at_its_end(series, missing_s, text, _NODE_IS_GONE, of_host=True)


def _gpus_ended_early(timed: list[GpuSeries], at: Thresholds) -> Iterator[Finding]:
    """Find GPUs whose rows end long before those of the node's others in the same start.

    A lost GPU keeps its rows: what has none is missed by a monitor that was started anew.
    """
    ends_s: dict[object, float] = {}
    for series in timed:
        for last in np.flatnonzero(np.diff(series.starts, append=-1)).tolist():
            key = series.place, int(series.starts[last])
            ends_s[key] = max(ends_s.get(key, -np.inf), float(series.time_s[last]))
    for series in timed:
        missing_s = ends_s[series.place, int(series.starts[-1])] - float(series.time_s[-1])
        if series.gpu is not None and missing_s > _longest_s(series.interval_s, at):
            text = f"its rows end {minutes(missing_s)} before the node's others"
            yield _at_its_end(series, missing_s, text, _GPU_IS_GONE)


def _at_its_end(
    series: GpuSeries, missing_s: float, text: str, suggestion: str, *, of_host: bool = False
) -> Finding:
    last = np.arange(series.num_samples) == series.num_samples - 1
    return readings.finding(
        "warning", series, last, text, suggestion, weight=missing_s, of_host=of_host
    )


def _missing(run: Run) -> Iterator[Finding]:
    """Find nodes that had ranks, and have no log where others have one."""
    ups = [event for event in run.events if event.get("event") == "rank_up"]
    nodes = {_short(node) for event in ups if isinstance(node := event.get("node"), str)}
    logged = {_short(series.host) for series in run.gpus}
    for node in sorted(nodes - logged if nodes & logged else ()):
        yield Finding(
            severity="warning",
            host=node,
            evidence="it had ranks, and no log of it is here, as of the job's other nodes",
            suggestion="see RUN_DIR/logs/monitor-NODE.log for why its monitor wrote nothing, and"
            " whether its log was left behind when the others were copied",
        )


@rule(
    "stale",
    "live: a log does not grow any more, or is gone",
    thresholds=("gap_intervals", "stale_seconds"),
    scope="live",
)
def _stale(run: Run, at: Thresholds) -> Iterator[Finding]:
    for log in run.logs if isinstance(run, Window) else ():
        if not is_stale(log.quiet_s, log.interval_s, at):
            continue
        yield Finding(
            severity="warning" if log.is_there else "error",
            host=log.host,
            evidence=f"the log has not grown for {minutes(log.quiet_s)}"
            if log.is_there
            else "the log is gone",
            suggestion=_NODE_IS_GONE,
            job=log.job,
            weight=log.quiet_s,
        )


def is_stale(quiet_s: float, interval_s: float, at: Thresholds) -> bool:
    """Whether a log should have grown, by its own interval."""
    return quiet_s > max(at.stale_seconds, at.gap_intervals * interval_s)


def _short(host: str) -> str:
    return host.partition(".")[0]


def _zone_s(series: GpuSeries, nodes: list[GpuSeries]) -> float:
    """Return how much later a node's log begins by its zone, which dmon does not record.

    The nodes of a job begin together, and zones differ by quarters of an hour.
    """
    if "utc_offset" in series.facts:
        return 0.0
    first_s = float(np.median([float(one.time_s[0]) for one in nodes]))
    return _QUARTER_S * round((float(series.time_s[0]) - first_s) / _QUARTER_S)


RULES = (_gap, _stale)
