"""Whether a run that told no end still goes on: asked of its processes, of Slurm, of its files."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monitor.runs import nodes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from monitor.runs.slurm import Job

_FRESH_S = 60.0  # of the files: the monitor writes every 15 s by default


def state(run_dir: str, attempt: dict[str, Any], job: Job | None, quiet_s: float | None) -> str:
    """Tell `ended`, `restarting`, `queued`, `running` or `killed`.

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
    if job is not None:
        return "running" if job.is_running else "killed"
    if _has_process(run_dir, attempt):
        return "running"
    return "running" if is_fresh and not _is_all_here(attempt) else "killed"


def _has_process(run_dir: str, attempt: dict[str, Any]) -> bool:
    """Whether a rank of the attempt lives on this machine: it carries the run's directory."""
    token = f"DDP_RUN_DIR={run_dir}".encode()
    for rank in attempt["ranks"]:
        with suppress(OSError):
            if token in Path(f"/proc/{rank['pid']}/environ").read_bytes().split(b"\0"):
                return True
    return False


def _is_all_here(attempt: dict[str, Any]) -> bool:
    """Whether all ranks ran on this machine, so that none of them there means none."""
    here = os.uname().nodename.split(".")[0]
    on = {rank["node"] for rank in attempt["ranks"]}
    return on == {here} and attempt["place"] == "bare-local"


def last_written_s(run_dir: str, attempt: dict[str, Any]) -> float | None:
    """When anything of the run was last written, in seconds since 1970; None if nothing is there.

    The monitors' logs lie beside the run directory; they grow as long as the ranks live.
    """
    logs = os.path.join(run_dir, "logs")  # noqa: PTH118 - start time
    paths: list[str] = [os.path.join(run_dir, n) for n in ("events.jsonl", "metrics.jsonl")]  # noqa: PTH118
    with suppress(OSError):
        paths += [entry.path for entry in os.scandir(logs)]
    told = attempt["nodes"] if isinstance(attempt["nodes"], list) else []
    paths += [nodes.path_of(run_dir, attempt["job_id"], node) for node in told]
    return max(_written_s(paths), default=None)


def _written_s(paths: Iterable[str]) -> Iterable[float]:
    for path in paths:
        with suppress(OSError):
            yield os.stat(path).st_mtime  # noqa: PTH116
