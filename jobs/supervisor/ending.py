"""How an attempt ended, as values and in words, and what is the same in all attempts of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rundir import codes
from rundir.paths import RunDir
from rundir.text import counted, problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobs.backends.base import Layout
    from rundir.failure import Failure
    from rundir.failure.attempt import End
    from rundir.nodes import BadNode


class Job(NamedTuple):
    """What stays the same in all attempts."""

    id: str
    run_dir: str
    image: str
    num_nodes_allocated: int
    num_nodes_wanted: int
    is_own_command: bool
    is_under_slurm: bool
    is_interactive: bool
    has_client: bool
    restart_count: int
    """How often Slurm has requeued it."""
    max_restarts: int
    max_idle_restarts: int
    may_requeue: bool
    is_no_kill: bool
    """Whether Slurm leaves the job its other nodes when it loses one."""
    min_nodes: int | None = None
    """The fewest nodes of an elastic run; None: it is not one, and takes no node back."""

    @property
    def go_on(self) -> str:
        """What a person can do."""
        return f"to go on: start again with DDP_RUN_NAME={self.run_dir.rpartition('/')[2]}"


class Counters(NamedTuple):
    """What one attempt leaves to the next."""

    restarts: int = 0
    """Since the last new checkpoint."""
    idle: int = 0
    """Starts in a row that brought no new checkpoint."""


class Ending(NamedTuple):
    """How an attempt ended."""

    failure: Failure
    code: int
    stop_signal: str | None
    """Who asked the job to stop did it so."""
    layout: Layout
    latest: str
    """The newest checkpoint's name; empty if there is none."""
    latest_at_start: str
    latest_at_job_start: str
    lost: tuple[str, ...]
    """Nodes that this attempt lost."""
    lost_before: tuple[str, ...]
    took_s: float
    returned: tuple[str, ...] = ()
    """Nodes that are back, and for which the ranks were asked to stop."""
    refused: frozenset[int] = frozenset()
    """Numbers of nodes that this run cannot use: it ended with 64 on them."""
    is_foreign_image: bool = False
    """The program that Slurm did not find is our launcher, in an image that is not ours."""
    bad: tuple[BadNode, ...] = ()
    """Nodes that this attempt showed to be bad, and that leave the job."""
    bad_before: tuple[BadNode, ...] = ()
    has_begun: bool = True
    """Whether there was an attempt: nodes may be bad before the first."""

    @property
    def exclude(self) -> tuple[str, ...]:
        """Nodes to do without from now on."""
        before = tuple(n for n in self.lost_before if n not in self.returned)
        bad = (one.node for one in (*self.bad_before, *self.bad))
        return tuple(dict.fromkeys((*before, *self.lost, *bad)))


# ---- in words -----------------------------------------------------------------------------------


def message_of(job: Job, end: Ending) -> str:  # noqa: PLR0911 -- a list of cases
    """Say what happened, in the words of the job's last line."""
    failure, code = end.failure, end.code
    if code == codes.FINISHED:
        every = "all " if end.layout.world_size > 1 else ""
        hidden = f", but {failure.why} (a pipe needs set -o pipefail)" if failure.why else ""
        return f"{every}{counted(end.layout.world_size, 'rank')} finished{hidden}; {job.run_dir}"
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
    if failure.end is None and end.stop_signal:  # Pyxis ends with 1 whose unpacking is broken off
        return _of_stop(job, end)
    if failure.end is None:
        started = f"the ranks could not be started: the step {codes.describe(code)}"
        return f"{started}, see the lines above"
    if failure.end.rank is None and failure.end.node:
        why = failure.why or f"the step {codes.describe(code)}, see the lines above"
        return f"no rank came up on {failure.end.node}: {why}"
    if failure.end.rank is None:
        return _of_all(end)
    return _of_rank(job, end, failure.end)


def message_of_bad(bad: Sequence[BadNode]) -> str:
    """Say which nodes are bad, and why."""
    return "; ".join(f"node {one.node} is bad: {one.reason}" for one in bad)


def _of_rank(job: Job, end: Ending, rank: End) -> str:
    log = f"its log: {RunDir(job.run_dir).rank_log(rank.rank or 0)}"
    ended = f"rank {rank.rank} on {rank.node} {codes.describe(end.code)}"
    if _is_asked(end):
        return f"stopped on request (SIG{end.stop_signal}); {ended}; {log}"
    why = f": {end.failure.why}" if end.failure.why else ""
    return f"{ended}{why}; {log}"


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
        requested = f"rank {rank.rank} on {rank.node} requested a requeue by exit code {end.code}"
        return f"{requested}; {_checkpoint(job, end)}"
    return f"stopped on request{by}, code {end.code}; {_checkpoint(job, end)}"


def _checkpoint(job: Job, end: Ending) -> str:
    if end.latest:
        return f"the newest checkpoint is {end.latest}"
    if job.is_own_command:
        return "by this code the command says that it wrote a checkpoint"
    return "there is no checkpoint yet"
