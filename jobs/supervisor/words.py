"""How an attempt ended, in the words of the job's last line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rundir import codes
from rundir.paths import RunDir
from rundir.text import counted, problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobs.supervisor.ending import Ending, Job
    from rundir.failure.attempt import End
    from rundir.nodes import BadNode


def of_ending(job: Job, end: Ending) -> str:  # noqa: PLR0911 -- a list of cases
    """Say what happened."""
    failure, code = end.failure, end.code
    if code == codes.FINISHED:
        every = "all " if end.layout.world_size > 1 else ""
        return f"{every}{counted(end.layout.world_size, 'rank')} finished; {job.run_dir}"
    if code == codes.STOPPED:
        return _of_stop(job, end)
    if failure.verdict:
        return failure.verdict
    if failure.lost and failure.end:
        rank = "" if failure.end.rank is None else f"rank {failure.end.rank} and "
        how = failure.lost[0][1]
        return f"node {failure.end.node} is lost with {rank}all of its ranks, code {code}: {how}"
    if end.is_foreign_image:
        return problem(
            "DDP_IMAGE must be an image with bash and Python 3.9 or later",
            f"that launcher.sh cannot start in {job.image}",
            "see srun's words above, or build upon it with --build-arg BASE_IMAGE",
        )
    if failure.end is None:
        started = f"the ranks could not be started: the step {codes.describe(code)}"
        return f"{started}, see the lines above"
    if failure.end.rank is None:
        return _of_all(end)
    return _of_rank(job, end, failure.end)


def of_bad(bad: Sequence[BadNode]) -> str:
    """Say which nodes are bad, and why."""
    return "; ".join(f"node {one.node} is bad: {one.reason}" for one in bad)


def _of_rank(job: Job, end: Ending, rank: End) -> str:
    log = f"its log: {RunDir(job.run_dir).rank_log(rank.rank or 0)}"
    told = f"rank {rank.rank} on {rank.node} {codes.describe(end.code)}"
    if _is_asked(end):
        return f"stopped on request (SIG{end.stop_signal}); {told}; {log}"
    why = f": {end.failure.why}" if end.failure.why else ""
    return f"{told}{why}; {log}"


def _of_all(end: Ending) -> str:
    killed = f"all {end.layout.world_size} ranks were killed at once, code {end.code}"
    if _is_asked(end):
        return f"stopped on request (SIG{end.stop_signal}); {killed}"
    return f"{killed}, and none could report which was the first"


def _is_asked(end: Ending) -> bool:
    return bool(end.stop_signal) and end.failure.first is None


def _of_stop(job: Job, end: Ending) -> str:
    rank = end.failure.end
    by = f" (SIG{end.stop_signal})" if end.stop_signal else ""
    if rank is None or rank.rank is None:
        return f"stopped on request{by} before the ranks were started (code {end.code})"
    if job.is_own_command and not end.stop_signal and not end.returned:
        asks = f"rank {rank.rank} on {rank.node} asks by code {end.code} to go on later"
        return f"{asks}; {_checkpoint(job, end)}"
    return f"stopped on request{by}, code {end.code}; {_checkpoint(job, end)}"


def _checkpoint(job: Job, end: Ending) -> str:
    if end.latest:
        return f"the newest checkpoint is {end.latest}"
    if job.is_own_command:
        return "by this code the command says that it wrote a checkpoint"
    return "there is no checkpoint yet"
