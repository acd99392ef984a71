"""How an attempt ended, and why: a pure function of its events and of the ends of its logs.

The supervisor calls it when a step has ended, for the job's exit code and last line; `monitor why`
and `compose` call it afterwards. So both give one answer.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from rundir import codes, secrets
from rundir.failure import attempt as read
from rundir.failure import first, patterns, words
from rundir.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rundir.events import Event
    from rundir.failure.attempt import End, Ends
    from rundir.failure.first import Blamed, LogEnd
    from rundir.failure.patterns import Finding

OUT_OF_MEMORY = "out of memory, ask for more (sbatch --mem, docker run --memory)"

_REASONS = (
    ("preempted", r"pre-?empt|Slurm has requeued"),
    ("time limit", r"time.?limit"),
    ("cancelled", r"cancel"),
)
_NOTHING = "nothing"
"""The cause that a decision gives where Slurm has nothing in mind with the job."""
_SILENCED = ("KILL", "SEGV")
"""Signals that leave a rank no time to say anything."""
_OWN_REQUEUE = re.compile(r"requeing job|Requeued SLURM job|requeued exp")
"""What Lightning's rank 0 says when it calls `scontrol requeue` itself, by its versions."""


class Failure(NamedTuple):
    """How an attempt ended."""

    code: int | None
    """The job's exit code; None: the end is unknown."""
    end: End | None
    """The rank, or node, whose code that is; None if all finished, or none started."""
    first: End | None
    """The same if it is the root cause: the first failure; None if no rank failed."""
    why: str
    """What is known of the rank's reason, for the job's last line; may be empty.

    Of a run that finished: that a log contradicts it.
    """
    error: str | None
    """The rank's own line for it, for the record."""
    verdict: str
    """The watchdog's line, if it decides; else empty."""
    lost: tuple[tuple[str, str], ...]
    """Lost nodes, and how each was lost."""
    finding: Finding
    """The class of the failure, in words, and the evidence."""


def classify(
    events: Sequence[Event],
    log_end: LogEnd = lambda _rank: "",
    *,
    step_code: int | None = None,
    guard: str = "",
    code: int | None = None,
) -> Failure:
    """Say how an attempt ended.

    Args:
        events: of this attempt alone, in the order of the log, lost nodes included.
        log_end: `words.log_end` of what a rank wrote in this attempt.
        step_code: live: what the step as a whole ended with.
        guard: live: why the supervisor ended the step itself; empty if it did not.
        code: afterwards: what the attempt ended with, if that is known.

    """
    ends = read.ends(events)
    known = step_code if code is None else code
    blamed = first.find(events, ends, log_end, step_code=known, guard=guard, code=code)
    reached = code if code is not None else _code(events, blamed, step_code)
    case = _Case(events, ends, blamed, reached, log_end)
    finding = case.finding()
    return Failure(
        code=reached,
        end=case.end,
        first=case.failed,
        why=printable(secrets.hide_in_message(case.why()))[: words.MAX_LINE],
        error=secrets.hide_in_message(case.error() or "") or None,
        verdict=case.verdict_text(),
        lost=case.lost,
        finding=finding._replace(line=secrets.hide_in_message(finding.line)),
    )


def suspected_nodes(events: Sequence[Event]) -> list[str]:
    """Name the nodes to ask for before `classify`: they may be lost, and no event says so yet.

    Those with a rank that reported no end, and the one that the watchdog could not reach.
    """
    known = {node for node, _ in _lost(events)}
    verdict = read.first(events, "verdict")
    nodes = list(read.ends(events).up.values())
    if verdict.get("kind") == "network":
        nodes.append(read.text(verdict.get("node")))
    return [node for node in dict.fromkeys(nodes) if node and node not in known]


def _lost(events: Sequence[Event]) -> tuple[tuple[str, str], ...]:
    reported = ((read.text(e.get("node")), e.get("how")) for e in read.every(events, "lost_node"))
    return tuple((node, str(how or "")) for node, how in reported if node)


def _code(events: Sequence[Event], blamed: Blamed | None, step_code: int | None) -> int | None:
    """Return the job's code: that of the rank that counts, else the step's own."""
    if step_code is None:
        return None
    if blamed is not None:
        return blamed.end.code
    if step_code > 128 and read.requests(events):  # noqa: PLR2004
        return codes.STOPPED  # the signal ended agents that had no rank yet: nothing is lost
    return step_code


def _cause_of(decision: Event) -> str:
    """Return why Slurm ended the job; in older runs only the reason in words does."""
    reason = re.sub(r"DDP_RUN_NAME=\S+", "", str(decision.get("reason") or ""))
    found = (name for name, pattern in _REASONS if re.search(pattern, reason, re.IGNORECASE))
    known = read.text(decision.get("cause"))
    return "" if known == _NOTHING else known or next(found, "")


def _is_not_slurms(decision: Event) -> bool:
    """Whether Slurm was asked, and had nothing in mind; older runs did not ask for all."""
    is_requeue = decision.get("decision") in ("requeue", "successor")
    cause = decision.get("cause", "")
    return cause == _NOTHING or (is_requeue and cause is None)


class _Case:
    """One end, and what is known about it."""

    def __init__(
        self,
        events: Sequence[Event],
        ends: Ends,
        blamed: Blamed | None,
        code: int | None,
        log_end: LogEnd,
    ) -> None:
        self.events, self.ends, self.code = events, ends, code
        self.end = blamed.end if blamed else None
        self.lost = _lost(events)
        self._log_end = log_end
        self._errors = read.reported_errors(events)
        self._verdict = read.first(events, "verdict")
        self.failed = blamed.failed if blamed else None
        self._unstarted = self._node_without_ranks()

    def _node_without_ranks(self) -> str | None:
        """Name the node that is blamed because no rank came up on it; None: something else is."""
        if self.failed is None or self.failed.rank is not None or self.lost or self._verdict:
            return None
        return self.failed.node

    # ---- for the job's last line

    def verdict_text(self) -> str:
        is_decisive = not self.lost or self._verdict.get("kind") == "network"
        return str(self._verdict.get("text") or "") if is_decisive else ""

    def why(self) -> str:  # noqa: PLR0911 -- a list of cases
        if self._unstarted:
            return self._refusal()
        if self.code == codes.FINISHED and self.ends.finished:
            return self._hidden(self.ends.finished[0])
        if self.end is None or self.end.rank is None or self.lost or self._verdict:
            return ""
        if self.end.rank in self.ends.oom:
            return OUT_OF_MEMORY
        reported, log = self._reported(self.end), self._log_end(self.end.rank)
        if reported:
            return reported[: words.MAX_LINE]
        raised = words.last_exception(log)
        if self.end.signal and not raised.startswith(words.TERMINATE):
            raised = ""  # C++ ends so where nobody catches an exception; any other was before
        if self.end.signal not in first.SPEAKS:
            return raised
        own = words.last_message(log) if self.end.code == codes.FAILED else ""
        last = words.last_line(log)
        return raised or own or (last and f"last line '{last}'")

    def _hidden(self, end: End) -> str:
        """Return the exception with which the first rank to finish ended; the others follow it."""
        log = self._log_end(end.rank) if end.rank is not None else ""
        raised = words.last_exception(log) if words.TRACEBACK in log else ""
        return raised and f"rank {end.rank}'s log ends with an error: {raised}"

    def _refusal(self) -> str:
        """Return why an agent refused to start on that node; may be empty."""
        found = (e for e in self._errors.values() if e.get("host") == self._unstarted)
        return read.text(next(found, {}).get("error")) or ""

    # ---- for the record

    def error(self) -> str | None:
        if self._unstarted:
            return self._refusal() or None
        if self.failed is None or self.failed.rank is None:
            return None
        log = self._log_end(self.failed.rank)
        return words.headline(self._reported(self.failed), log) or None

    def finding(self) -> Finding:
        """Find the class of the failure in the table."""
        if self.code is None and self._all_finished():
            return patterns.DONE
        return patterns.match({**self._signs_of_job(), **self._signs_of_rank()})

    def _all_finished(self) -> bool:
        size = read.last(self.events, "start").get("world_size")
        return len(self.ends.finished) == len(self.ends.nodes) == size

    def _signs_of_job(self) -> dict[str, str]:
        is_stop = self.failed is None or self.code == codes.STOPPED
        return {
            "code": "" if self.code is None else str(self.code),
            "node": ": ".join(self.lost[0]).rstrip(": ") if self.lost else "",
            "verdict": str(self._verdict.get("kind") or ""),
            "stop": self._stop() if is_stop else "",
            "end": "none" if self.code is None else "",
        }

    def _signs_of_rank(self) -> dict[str, str]:
        end = self.failed
        if end is None:
            has_none = bool(self.code) and not self.ends.nodes
            return {"save": self._failed_save(), "start": "no rank came up" if has_none else ""}
        if self._unstarted:
            return {"start": f"no rank came up on {self._unstarted}"}
        log = "" if end.rank is None else self._log_end(end.rank)
        signs = {"log": log, "signal": end.signal or ""}
        signs["fault"] = self._fault(end)
        signs["copies"] = self._differs(end)
        signs["oom"] = "true" if end.rank in self.ends.oom else ""
        if end.signal in _SILENCED:
            return signs
        reported = self._reported(end)
        errors = "\n".join(filter(None, (reported, *words.errors_in(log))))
        causes = read.reported_causes(self._errors.get(end.rank, {}))
        follows = words.consequence(causes, log) if end.signal in first.SPEAKS else ""
        return {
            **signs,
            "error": errors,
            "later": errors if self._has_trained() else "",
            "early": self._finished_before(end) if follows else "",
            "follows": follows,
            "nan": self._not_finite() if end.code == codes.FAILED else "",
            "save": "" if reported else self._failed_save(),
        }

    def _reported(self, end: End) -> str | None:
        return read.text(self._errors.get(end.rank, {}).get("error"))

    def _fault(self, end: End) -> str:
        faults = (e for e in read.every(self.events, "gpu_fault") if e.get("node") == end.node)
        return read.text(next(faults, {}).get("text")) or ""

    def _differs(self, end: End) -> str:
        differing = (e.get("rank") for e in read.every(self.events, "replica_differs"))
        return (self._reported(end) or "replica_differs") if end.rank in differing else ""

    def _has_trained(self) -> bool:
        names = ("first_step", "checkpoint")
        return any(event.get("event") in names for event in self.events)

    def _not_finite(self) -> str:
        return str(read.last(self.events, "non_finite").get("action") or "")

    def _finished_before(self, end: End) -> str:
        """Name a rank that had ended well before this one failed; empty if none had."""
        for event in read.every(self.events, "rank_end"):
            if read.integer(event.get("rank")) == end.rank:
                break
            if event.get("code") == 0:
                return f"rank {event.get('rank')} on {event.get('node')} had ended with code 0"
        return ""

    def _failed_save(self) -> str:
        """Return why the last checkpoint failed; empty if only because a peer was gone."""
        event = read.last(self.events, "checkpoint_failed")
        text = ": ".join(str(event[key]) for key in ("reason", "error") if event.get(key))
        return "" if words.consequence(text, "") else text

    def _stop(self) -> str:
        """Say why the job was asked to end; empty if it was not.

        What Slurm had in mind, which stands in the decision, beats what a signal can say; only
        where the program says that it requeued the job itself, Slurm's requeue is no preemption.
        """
        names, signalled_script = read.signals(self.events), read.requests(self.events)
        # a signal to the trainer alone is no reason for an end that was not reported
        if (not names and self.code != codes.STOPPED) or (
            self.code is None and not signalled_script
        ):
            return ""
        decision = read.last(self.events, "decision")
        cause = _cause_of(decision)
        if cause == "preempted" and _OWN_REQUEUE.search(self._log_end(0)):
            cause = "time limit" if "USR1" in names else "itself"
        if cause:
            return cause
        if "USR1" in names:
            return "time limit"
        if _is_not_slurms(decision) or (not signalled_script and self._ended_by_itself()):
            return "signalled" if names else "itself"
        return "cancelled" if self._is_by_hand(names) else "preempted"

    def _is_by_hand(self, names: list[str]) -> bool:
        job_id = str(read.last(self.events, "start").get("job_id") or "")
        is_local = job_id.startswith("local-")
        return "INT" in names or "HUP" in names or (bool(names) and is_local)

    def _ended_by_itself(self) -> bool:
        """Whether the first rank that did not end well had not been asked to end."""
        ends = (e for e in read.every(self.events, "rank_end") if e.get("code") != 0)
        return not next(ends, {}).get("requested", True)
