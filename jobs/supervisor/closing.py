"""The end of an attempt: who failed, what follows, and the record of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.messages import info, write
from jobs.supervisor import bad_nodes, decide, run
from jobs.supervisor.bad_nodes import Past
from jobs.supervisor.ending import Ending
from jobs.supervisor.guard import lost_nodes
from jobs.supervisor.leaving import Leaving
from jobs.supervisor.running import Ran
from rundir import codes, failure, plain
from rundir.failure import Failure, classify, words
from rundir.failure.patterns import Finding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobs.supervisor.current import Current
    from jobs.supervisor.decide import Decision
    from rundir.nodes import BadNode

_NO_PROGRAM = (2, 127)
"""Codes by which Slurm says that the program is not there, and env that the image has no bash."""
_SHOWN_LINES = 20
"""Of the failed rank's log."""


class Closing:
    """Classifies how an attempt ended, decides what follows, and reports both."""

    def __init__(self, now: Current) -> None:
        """No attempt has ended yet."""
        self._now, self._plan, self._journal = now, now.plan, now.journal
        self._job, self._files = now.plan.job, now.plan.files
        self.leaving = Leaving(now)

    def close(self, ran: Ran) -> Decision:
        """Decide what follows a step that is over, and record it."""
        self._journal.close()
        # Where a rank did not come up, its node may have unpacked only half of the image.
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
        end = end._replace(bad=self._bad(end))
        decision = decide.decide(self._job, end, self._now.counters, self._ask)
        self._adopt(decision)
        self._report(decision, end)
        return decision

    def before_start(self, bad: Sequence[BadNode]) -> Decision | None:
        """Decide on nodes that are bad before the first attempt; None: it starts as planned."""
        if not bad or not self.leaving.is_wanted:
            return None
        self._journal.open(self._now.attempt)
        before, leaves = self._now.bad, self.leaving.take(bad)
        if not leaves:
            return None
        finding = Finding(bad_nodes.HARDWARE, "has bad nodes", "node", "")
        failed = Failure(codes.FAILED, None, None, "", None, "", (), finding)
        end = self._ended(failed, Ran(codes.FAILED))
        end = end._replace(bad=leaves, bad_before=before, has_begun=False)
        decision = decide.before_start(self._job, end, self._now.counters, self._ask)
        self._adopt(decision)
        if decision.kind != decide.RESTART:
            self._report(decision, end)
        return decision

    def _adopt(self, decision: Decision) -> None:
        """Keep the counters and the lost nodes for the next attempt."""
        bad = [one.node for one in self._now.bad]
        self._now.counters = decision.counters
        self._now.lost = tuple(node for node in decision.exclude if node not in bad)

    def _ask(self) -> str:
        return self._plan.here.slurm.job_info() or ""

    def _bad(self, end: Ending) -> tuple[BadNode, ...]:
        """Find the nodes that this attempt shows to be bad, and take them out of the job."""
        if not self.leaving.is_wanted:
            return ()
        found = bad_nodes.find(
            end.failure,
            self._journal.reports.events,
            self._now.past,
            is_stopped=end.stop_signal is not None,
            num_nodes=len(self._now.nodes),
        )
        if found.note:
            info(found.note)
        is_repeated = any(one.source == bad_nodes.REPEATED for one in found.bad)
        rank = found.blame.rank if found.blame and is_repeated else None
        leaves = self.leaving.take(found.bad, rank)
        ranks = self._now.past.ranks | ({rank} if leaves and is_repeated else set())
        self._now.past = Past(found.blame, ranks)
        return leaves

    # ---- how it ended

    def _ending(self, ran: Ran) -> Ending:
        self._now.loop.turn(0)  # takes in a signal that has just arrived
        events, code = self._journal.reports.events, ran.code
        if self._plan.is_elastic and code == codes.FINISHED:
            found = classify(events, code=code)  # finished, whichever nodes left on the way
            return self._ended(found, ran)
        suspected = failure.suspected_nodes(events)
        if self._job.min_nodes and code != codes.FINISHED:  # one that is back may be lost again
            seen = {event.get("node") for event in events}
            suspected += [node for node in self._now.nodes if node not in seen]
        may_have_dropped = self._job.is_no_kill and code != codes.FINISHED
        backend, nodes = self._plan.backend, self._now.nodes
        for node, how in lost_nodes(backend, suspected, nodes, may_have_dropped=may_have_dropped):
            self._journal.write("lost_node", node=node, how=how)
        found = classify(events, self._log_end, step_code=code, guard=ran.guard)
        if found.code == codes.USAGE:
            self._now.refused |= {self._now.layout.num_nodes}
        is_foreign = backend.has_own_image and code in _NO_PROGRAM
        return self._ended(found, ran, is_foreign=is_foreign and found.end is None)

    def _ended(self, found: Failure, ran: Ran, *, is_foreign: bool = False) -> Ending:
        return Ending(
            found,
            codes.USAGE if is_foreign else found.code or codes.FINISHED,
            self._now.requests.stop_signal,
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
            bad_before=self._now.bad,
        )

    def _log_end(self, rank: int) -> str:
        begin = self._journal.reports.log_offsets.get(rank, 0)
        return words.log_end(plain.tail(self._files.rank_log(rank), words.LOG_BYTES, begin))

    # ---- what is reported of it

    def _report(self, decision: Decision, end: Ending) -> None:
        blame = self._now.past.blame
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
            blamed=blame._asdict() if blame else None,
        )
        self._write_end(decision.code)
        self._show_log(end.failure, decision.code)
        if decision.kind == decide.RESTART:
            info(decision.message)
        self._compose()

    def _show_log(self, found: Failure, code: int) -> None:
        """Show the end of this attempt in the failed rank's log, before the line that names it.

        Lines may be as long as a progress bar that never ends one.
        """
        first = found.first
        if first is None or first.rank is None or found.lost or code == codes.STOPPED:
            return
        lines = self._log_end(first.rank).splitlines()[-_SHOWN_LINES:]
        if lines:
            info(f"the end of {self._files.rank_log(first.rank)}:")
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
