"""Whether a run without a reported end goes on: asked of its processes, Slurm and its files."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from monitor.runs import node_log
from monitor.runs.history import seconds, times
from rundir import events, paths, procfs
from rundir.plain import open_plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitor.runs.slurm import Job

_FRESH_S = 60.0  # of the last word: the monitor writes every 15 s by default
_TAIL_BYTES = 2**14


def state(run_dir: str, attempt: dict[str, Any], job: Job | None, quiet_s: float | None) -> str:
    """Return `ended`, `restarting`, `queued`, `running`, `killed` or `unknown`.

    Args:
        run_dir: the run's directory.
        attempt: the record of its last attempt.
        job: what Slurm says.
        quiet_s: seconds since anything of the run was last written.

    """
    is_fresh = quiet_s is not None and quiet_s < _FRESH_S
    if job is not None and job.is_queued:
        return "queued"
    if attempt["code"] is not None:
        decision = (attempt["decision"] or {}).get("decision")
        if job is not None:
            goes_on = decision in ("restart", "requeue") and job.is_running
        else:
            goes_on = decision == "restart" and is_fresh
        return "restarting" if goes_on else "ended"
    if attempt["outcome"] == "finished":
        return "ended"
    if job is not None:
        return "running" if job.is_running else "killed"
    if _has_process(run_dir, attempt):
        return "running"
    return "killed" if _is_all_here(attempt) else "running" if is_fresh else "unknown"


def go_on(made: dict[str, Any], now_s: float) -> None:
    """Let a record reach to now, whose last attempt still runs: nothing of it is lost yet."""
    attempt, goodput = made["attempts"][-1], made["goodput"]
    lost_s = attempt["ledger"]["lost_s"]
    goodput["compute_s"] = round(goodput["compute_s"] + lost_s, 3)
    goodput["lost_s"] = round(goodput["lost_s"] - lost_s, 3)
    if made["steps_lost"] is not None:
        made["steps_lost"] -= attempt["steps_lost"] or 0
    attempt["steps_lost"] = None
    began_s = seconds(made["attempts"][0]["start_time"])
    if began_s is not None and began_s + goodput["wall_s"] < now_s:
        # its last moments are not reported yet
        goodput["unknown_s"] += round(now_s - began_s - goodput["wall_s"], 3)
        goodput["wall_s"] = round(now_s - began_s, 3)
    if goodput["wall_s"] and goodput["compute_s"]:
        goodput["goodput_pct"] = round(100 * goodput["compute_s"] / goodput["wall_s"], 1)


def _has_process(run_dir: str, attempt: dict[str, Any]) -> bool:
    """Whether a rank of the attempt lives on this machine: it carries the run's directory."""
    token = f"DDP_RUN_DIR={run_dir}".encode()
    return any(token in procfs.variables(rank["pid"]) for rank in attempt["ranks"])


def _is_all_here(attempt: dict[str, Any]) -> bool:
    """Whether all ranks ran on this machine, so that none of them there means none."""
    here = os.uname().nodename.split(".")[0]
    on = {str(rank["node"]) for rank in attempt["ranks"]}
    return on == {here} and attempt["place"] == "bare-local"


def last_written_s(run_dir: str, attempt: dict[str, Any]) -> float | None:
    """When anything of the run was last written, in seconds since 1970; None if nothing is there.

    By the times in it, for a copy's files are new; a file's own time only bounds them. The
    monitors' logs lie beside the run directory; they grow as long as the ranks live.
    """
    names = (paths.EVENTS, paths.METRICS)
    found = [_last_s(os.path.join(run_dir, name), _line_s) for name in names]
    nodes = attempt["nodes"] if isinstance(attempt["nodes"], list) else []
    for node in nodes:
        if max(filter(None, found), default=0.0) > time.time() - _FRESH_S:
            break  # one fresh word is enough, and a log's end takes time to read
        log = paths.gutil_path(os.path.dirname(run_dir), attempt["job_id"], node)
        found.append(_last_s(log, _sample_s))
    return max(filter(None, found), default=None)


def _last_s(path: str, last_s: Callable[[str], float | None]) -> float | None:
    with suppress(OSError):
        written_s = os.stat(path).st_mtime
        inside_s = last_s(path)
        return written_s if inside_s is None else min(written_s, inside_s)
    return None


def _line_s(path: str) -> float | None:
    with open_plain(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        lines, _ = events.read(file.read())
    return max(times(lines), default=None)


def _sample_s(path: str) -> float | None:
    return max((sample.time_s for sample in node_log.read(path).samples), default=None)
