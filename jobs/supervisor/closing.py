"""The end of an attempt: who failed, what follows, and the record of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.messages import info, write
from jobs.supervisor import decide, run
from jobs.supervisor.ending import Ending
from jobs.supervisor.guard import lost_nodes
from rundir import codes, failure, plain
from rundir.failure import Failure, classify

if TYPE_CHECKING:
    from jobs.loop import Loop
    from jobs.supervisor.current import Current
    from jobs.supervisor.decide import Decision
    from jobs.supervisor.journal import Journal
    from jobs.supervisor.plan import Plan
    from jobs.supervisor.running import Ran
    from jobs.supervisor.signals import Requests

_LOG_END = 16384
_NO_PROGRAM = 2
"""With it Slurm says that the program is not there."""
_SHOWN_LINES = 20


class Closing:
    """Classifies how an attempt ended, decides what follows, and reports both.

    Args:
        plan: What stays the same.
        loop: Has the signals.
        requests: Knows whether somebody asked the job to stop.
        journal: Has the attempt's reports, and takes what was found and decided.
        now: The attempt; what is decided of the next one is written there.

    """

    def __init__(
        self, plan: Plan, loop: Loop, requests: Requests, journal: Journal, now: Current
    ) -> None:
        """No attempt has ended yet."""
        self._plan, self._loop, self._requests, self._journal = plan, loop, requests, journal
        self._now = now
        self._job, self._files = plan.job, plan.files

    def close(self, ran: Ran) -> Decision:
        """Say what follows a step that is over."""
        self._journal.close()
        # Where a rank did not come up, its node may have unpacked half of the image.
        if self._journal.reports.num_started < self._now.layout.world_size:
            self._now.container = ""
        end = self._ending(ran)
        first = end.failure.first
        if first is not None and first.rank is not None:
            self._journal.write(
                "first_failure",
                rank=first.rank,
                node=first.node,
                code=first.code,
                signal=first.signal,
            )
        decision = decide.decide(self._job, end, self._now.counters, self._ask)
        self._now.counters, self._now.lost = decision.counters, decision.exclude
        self._report(decision, end)
        return decision

    def _ask(self) -> str:
        return self._plan.here.slurm.job_info() or ""

    # ---- how it ended

    def _ending(self, ran: Ran) -> Ending:
        self._loop.turn(0)  # a signal that has just arrived is known from here on
        events, limits, code = self._journal.reports.events, self._job.limits, ran.code
        if self._plan.is_elastic and code == codes.FINISHED:
            found = classify(events, code=code)  # whoever left on the way
            return self._ended(found, ran)
        suspected = failure.suspected_nodes(events)
        if limits.min_nodes and code != codes.FINISHED:  # it came back, and was lost again
            seen = {event.get("node") for event in events}
            suspected += [node for node in self._now.nodes if node not in seen]
        may_have_dropped = limits.is_no_kill and code != codes.FINISHED
        backend, nodes = self._plan.backend, self._now.nodes
        for node, how in lost_nodes(backend, suspected, nodes, may_have_dropped=may_have_dropped):
            self._journal.write("lost_node", node=node, how=how)
        found = classify(events, self._log_end, step_code=code, guard=ran.guard)
        if found.code == codes.USAGE:
            self._now.refused |= {self._now.layout.num_nodes}
        is_foreign = backend.has_own_image and code == _NO_PROGRAM
        return self._ended(found, ran, is_foreign=is_foreign and found.end is None)

    def _ended(self, found: Failure, ran: Ran, *, is_foreign: bool = False) -> Ending:
        return Ending(
            found,
            codes.USAGE if is_foreign else found.code or codes.FINISHED,
            self._requests.stop_signal,
            self._now.layout,
            run.latest_checkpoint(self._files),
            self._now.latest_at_start,
            self._now.latest_at_job_start,
            lost=tuple(dict.fromkeys(node for node, _ in found.lost)),
            lost_before=self._now.lost,
            took_s=ran.took_s,
            returned=ran.returned,
            refused=self._now.refused,
            is_foreign_image=is_foreign,
        )

    def _log_end(self, rank: int) -> str:
        begin = self._journal.reports.log_offset(rank)
        return plain.tail(self._files.rank_log(rank), _LOG_END, begin)

    # ---- what is reported of it

    def _report(self, decision: Decision, end: Ending) -> None:
        is_new = end.latest != self._now.latest_at_job_start
        self._journal.write(
            "decision",
            decision=decision.kind,
            reason=decision.reason,
            restarts=decision.counters.restarts,
            idle=decision.counters.idle,
            exclude=",".join(decision.exclude) or None,
            carries_on=self._now.carries_on or is_new,
            cause=decision.cause,
        )
        self._write_end(decision.code)
        self._show_log(end.failure, decision.code)
        if decision.kind == decide.RESTART:
            info(decision.words)
        self._compose()

    def _show_log(self, found: Failure, code: int) -> None:
        """Show the end of the failed rank's log, before the line that names it.

        Lines may be as long as a progress bar that never ends one.
        """
        first = found.first
        if first is None or first.rank is None or found.lost or code == codes.STOPPED:
            return
        path = self._files.rank_log(first.rank)
        info(f"the end of {path}:")
        lines = plain.tail(path, _LOG_END).splitlines()[-_SHOWN_LINES:]
        write(2, "".join(f"    {line}\n" for line in lines))

    def break_off(self) -> None:
        """Record an attempt that this script's own failure ended."""
        self._write_end(codes.FAILED)
        self._compose()

    def _write_end(self, code: int) -> None:
        self._journal.write("end", code=code)
        self._journal.flush()

    def _compose(self) -> None:
        run.compose_record(self._plan.here.root, self._files, self._now.environ)
