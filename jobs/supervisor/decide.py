"""What follows the end of an attempt: pure, of its failure, the counters and Slurm's word.

finish     all ranks finished
restart    the ranks start again in this allocation
requeue    the job goes back to Slurm's queue
successor  a job like this one is submitted, because this one may not be requeued
fail       nothing is done
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from jobs.backends import scontrol
from jobs.supervisor.ending import Counters, message_of, message_of_bad
from rundir import codes, paths
from rundir.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jobs.supervisor.ending import Ending, Job

FINISH, RESTART, REQUEUE, SUCCESSOR, FAIL = "finish", "restart", "requeue", "successor", "fail"
REQUEUED = "requeued"
_GROWS = "more nodes"
_CAUSES = {
    _GROWS: _GROWS,
    REQUEUED: "preempted",
    "preempted": "preempted",
    "time limit": "time limit",
    "cancelled": "cancelled",
    "running": "nothing",
}
"""What Slurm, or this script, has in mind with the job: the `cause` in a `decision` event."""
_LEAST_RUN_S = 60
"""A command of the user's own that requests a requeue earlier has got nowhere."""
_LONGEST_DELAY_S = 30


class Decision(NamedTuple):
    """What follows."""

    kind: str
    reason: str
    message: str
    """The job's last line, as people read it."""
    code: int
    counters: Counters = Counters()
    delay_s: int = 0
    exclude: tuple[str, ...] = ()
    num_nodes: int = 0
    """Of the next attempt, if one follows in this allocation."""
    fate: str = "unknown"
    """What Slurm has in mind with the job, as far as it was asked."""
    comment: str = ""
    """Why nodes have left the job, for a reader of the queue."""

    @property
    def cause(self) -> str | None:
        """Why Slurm ends the job or its step; None if it was not asked, or did not answer."""
        return _CAUSES.get(self.fate)


def decide(job: Job, end: Ending, counters: Counters, ask: Callable[[], str]) -> Decision:
    """Decide. `ask` gives what Slurm says of the job; it is called only where that matters."""
    return _Case(job, end, counters, ask).decide()


def num_nodes_of(job: Job, num_there: int, refused: frozenset[int] = frozenset()) -> int:
    """Count the nodes that a start can use, of those that are there; 0: they are too few."""
    least = job.min_nodes or 1
    most = min(num_there, job.num_nodes_wanted)
    return next((num for num in range(most, least - 1, -1) if num not in refused), 0)


def choose_nodes(there: Sequence[str], current: Sequence[str], num: int) -> list[str]:
    """Choose so many of the nodes, in their order: the current ones first, where ranks may wait."""
    chosen = sorted(there, key=lambda node: node not in current)[:num]
    return [node for node in there if node in chosen]


def give_up_before_start(job: Job, num_silent: int) -> Decision:
    """Decide that nothing starts: `num_silent` starts in a row ended without a decision."""
    text = (
        f"no start: Slurm has requeued the job, and {num_silent} starts in a row ended with their"
        f" script or node before a new checkpoint (python -m monitor why {job.run_dir})"
    )
    return Decision(FAIL, text, f"{text}; {job.go_on}", codes.FAILED)


def before_start(job: Job, end: Ending, counters: Counters, ask: Callable[[], str]) -> Decision:
    """Decide of bad nodes before an attempt: to start, if it can do without them."""
    return _Case(job, end, counters, ask).before_start()


class _Case:
    """An attempt that has ended, or bad nodes before one, and what follows."""

    def __init__(self, job: Job, end: Ending, counters: Counters, ask: Callable[[], str]) -> None:
        self.job, self.end, self.counters, self._ask = job, end, counters, ask
        self._fate = "unknown"

    def decide(self) -> Decision:  # noqa: PLR0911 -- a list of cases
        job, end = self.job, self.end
        if end.code == codes.FINISHED:
            return self._as(FINISH, "")
        if end.code == codes.USAGE and end.layout.num_nodes < job.num_nodes_wanted:
            return self._refused()
        if end.code == codes.USAGE:
            return self._as(FAIL, "the input or the environment is wrong: not tried again")
        if end.stop_signal == "INT" or (end.stop_signal and not job.is_under_slurm):
            return self._as(FAIL, job.go_on)  # a person who ends a job wants it to end
        if end.returned and end.code == codes.STOPPED and not end.stop_signal:
            return self._grow()
        if end.stop_signal or end.code == codes.STOPPED:
            return self._requeue()
        if (end.lost or end.bad) and not self._can_do_without():
            return self._requeue()
        return self._restart()

    def before_start(self) -> Decision:
        return self._as(RESTART, "") if self._can_do_without() else self._requeue()

    def _as(self, kind: str, reason: str, more: str = "", delay_s: int = 0) -> Decision:
        end = self.end
        what = message_of(self.job, end) if end.has_begun else ""
        text = "; ".join(part for part in (what, message_of_bad(end.bad), reason, more) if part)
        return Decision(
            kind,
            reason,
            text,
            end.code,
            self.counters,
            delay_s,
            end.exclude,
            self._num_left,
            self._fate,
            message_of_bad((*end.bad_before, *end.bad)),
        )

    # ---- the allocation ends, the run does not

    def _requeue(self) -> Decision:  # noqa: PLR0911 -- a list of cases
        job, end, go_on = self.job, self.end, self.job.go_on
        can_ask = job.is_under_slurm and job.has_client and not job.is_interactive
        info = self._ask() if can_ask else ""
        self._fate = scontrol.fate(info, job.restart_count)
        if self._fate == REQUEUED:
            self._count_idle(end.latest_at_job_start)
            reason = f"Slurm has requeued job {job.id}, which will go on {self._from}"
            return self._as(REQUEUE, reason)
        if not can_ask:
            return self._as(FAIL, go_on)
        if not job.may_requeue:
            return self._as(FAIL, f"no requeue: DDP_REQUEUE=0; {go_on}")
        if self._fate == "cancelled":
            return self._as(FAIL, f"no requeue: the job was cancelled; {go_on}")
        if self._fate == "unknown":
            return self._as(FAIL, f"no requeue: Slurm does not answer; {go_on}")
        may_repeat = job.max_restarts > 0 or end.lost or not end.has_begun
        if end.code != codes.STOPPED and not may_repeat:
            reason = f"it did not end with code {codes.STOPPED}, a checkpoint written"
            return self._as(FAIL, f"no requeue: {reason}; {go_on}")
        return self._requeue_counted(info)

    def _requeue_counted(self, info: str) -> Decision:
        job = self.job
        if self.end.code != codes.USAGE:  # what could not begin on fewer nodes was no start
            self._count_idle(self.end.latest_at_job_start)
        if self.counters.idle > job.max_idle_restarts:
            return self._as(FAIL, f"no requeue: {self._idle_words}; {job.go_on}")
        has_spares = job.num_nodes_allocated > job.num_nodes_wanted
        spent = "no spare node is left: " if self.end.bad and has_spares else ""
        if scontrol.field(info, "Requeue") == "0":
            return self._as(SUCCESSOR, f"{spent}a successor of job {job.id} goes on {self._from}")
        return self._as(REQUEUE, f"{spent}job {job.id} is requeued and will go on {self._from}")

    # ---- the run goes on in this allocation

    def _restart(self) -> Decision:
        job, end = self.job, self.end
        self._count_idle(end.latest_at_start)
        if end.latest != end.latest_at_start:  # a run that gets on may go on for weeks
            self.counters = self.counters._replace(restarts=0)
        restarts, idle = self.counters
        if job.max_restarts == 0:
            return self._give_up("DDP_MAX_RESTARTS=0")
        if restarts >= job.max_restarts:
            reached = f"DDP_MAX_RESTARTS={job.max_restarts} is reached"
            return self._give_up(f"{reached} without a new checkpoint")
        if idle > job.max_idle_restarts:
            return self._give_up(self._idle_words)
        self.counters = Counters(restarts + 1, idle)
        # Only where the last one brought nothing is there something to wait for.
        delay_s = min(1 << idle, _LONGEST_DELAY_S) if idle else 0
        on = f"on {counted(self._num_left, 'node')} " if end.lost or end.bad else ""
        reason = f"restart {restarts + 1} of {job.max_restarts} {on}{self._from}"
        reason += f" in {delay_s} s" if delay_s else ""
        return self._as(RESTART, reason, delay_s=delay_s)

    def _refused(self) -> Decision:
        """Decide where the nodes that are left make a number of ranks that the run cannot have.

        Such as one that does not divide its batch. That is no mistake of the user's, who asked for
        more nodes, and the start does not count.
        """
        if self.job.min_nodes is None or not self._num_left:
            return self._requeue()
        refused = counted(self.end.layout.num_nodes, "node")
        left = counted(self._num_left, "node")
        reason = f"it cannot use {refused}: it starts again on {left} {self._from}"
        return self._as(RESTART, reason)

    def _grow(self) -> Decision:
        """Go on with the nodes that are back; that is no failure, and is not counted as one."""
        self._fate = _GROWS
        if self.end.latest != self.end.latest_at_start:
            self.counters = Counters()
        back = f"{', '.join(self.end.returned)} {'is' if len(self.end.returned) == 1 else 'are'}"
        on = counted(self._num_left, "node")
        return self._as(RESTART, f"{back} back: it goes on on {on} {self._from}")

    def _give_up(self, reason: str) -> Decision:
        """End the job: a person has to mend the failure."""
        return self._as(FAIL, f"no restart: {reason}", f"mend what fails; {self.job.go_on}")

    @property
    def _num_left(self) -> int:
        """Nodes that the next attempt can have."""
        left = self.job.num_nodes_allocated - len(self.end.exclude)
        return num_nodes_of(self.job, left, self.end.refused)

    def _can_do_without(self) -> bool:
        """Whether the run goes on in this allocation.

        Without --no-kill Slurm ends the job of a lost node, and the user has not allowed
        fewer; a spare one always does in place of a bad one.
        """
        needs_no_kill = self.end.lost or self._num_left < self.end.layout.num_nodes
        may = self.job.is_no_kill or not needs_no_kill
        return may and self.end.layout.is_even and self._num_left > 0

    # ---- progress

    def _count_idle(self, latest_before: str) -> None:
        """Count starts in a row without a new checkpoint: without a limit they would never end."""
        is_new = self.end.latest != latest_before or self._is_accepted()
        self.counters = self.counters._replace(idle=0 if is_new else self.counters.idle + 1)

    def _is_accepted(self) -> bool:
        """Whether a command of the user's own that keeps no checkpoints/latest got on.

        Its code 75 is accepted as that, unless nobody asked it to stop and it had hardly begun.
        """
        end = self.end
        has_rank = end.failure.end is not None and end.failure.end.rank is not None
        if not has_rank or end.latest or end.code != codes.STOPPED or not self.job.is_own_command:
            return False
        return bool(end.stop_signal) or end.took_s >= _LEAST_RUN_S

    @property
    def _idle_words(self) -> str:
        missed, remedy = "no new checkpoint", ""
        if self.job.is_own_command:
            missed += f" by the word of {paths.RunDir(self.job.run_dir).latest}"
            remedy = "; a command that writes none there needs a higher DDP_MAX_IDLE_RESTARTS"
        if self.counters.idle == 1:
            return f"this start brought {missed} (DDP_MAX_IDLE_RESTARTS=0){remedy}"
        return f"{self.counters.idle} starts in a row brought {missed}{remedy}"

    @property
    def _from(self) -> str:
        """Say where the run goes on; a command of the user's own may have checkpoints elsewhere."""
        if self.end.latest:
            return f"from step {paths.step_of(self.end.latest)}"
        if self.job.is_own_command:
            return "from the command's own checkpoint (if any)"
        return "from the beginning"
