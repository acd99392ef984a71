"""Who failed first: the rank or node that explains all other ends of an attempt.

A cause comes before what follows from it:

1. a verdict that the network is cut;
2. a lost node, because its peers only wait for it;
3. any other verdict of the watchdog;
4. a rank that started and never reported its end: its agent was killed, or its node. Not so if
   the supervisor ended the step for another's failure, or if the job was asked to end; nor if
   several ranks never did, beyond one node: then the step was killed, as PMIx does where one
   process has died, and if nobody reported an end it is not known whose was the first;
5. the first rank that failed without being asked to end. Code 70 of our trainer may be either
   cause or consequence, so any other code comes before it; a rank that only lost a peer comes last;
6. a node on which no rank came up, where ranks of others did: its container could not be made, or
   its agent refused to start. Slurm ends the others for it;
7. all ranks, where srun was killed and Slurm asked them to end for it;
8. a rank that was asked to end: then no rank failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rundir import codes
from rundir.failure import attempt as read
from rundir.failure import words
from rundir.failure.attempt import End

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rundir.events import Event
    from rundir.failure.attempt import Ends

    LogEnd = Callable[[int], str]
    """Gives `words.log_end` of what a rank wrote in this attempt, empty if there is nothing."""

_ENDING = {"TERM", "INT", "HUP"}
SPEAKS = (None, "ABRT")
"""How a rank ends that reported why; of one that another signal ended, the log is about before."""
_MAX_LOGS = 16


class Blamed(NamedTuple):
    """The end that gives the job its code."""

    end: End
    by_request: bool = False
    """Whether it ended only because it was asked to: then no rank failed."""

    @property
    def failed(self) -> End | None:
        """The end as a failure; None where it is none: on request, or to go on later."""
        return None if self.by_request or self.end.code == codes.STOPPED else self.end


def find(  # noqa: PLR0913 - what is known, each by its name
    events: Sequence[Event],
    ends: Ends,
    log_end: LogEnd,
    *,
    step_code: int | None,
    guard: str = "",
    code: int | None = None,
) -> Blamed | None:
    """Find whose end counts; None if all ranks finished, or if no rank started.

    Args:
        events: of this attempt.
        ends: read from them.
        log_end: reads a rank's log.
        step_code: what the step as a whole ended with; None: its end is unknown.
        guard: why the supervisor ended the step, empty if it ended by itself.
        code: what the attempt is known to have ended with, if this is asked afterwards.

    """
    verdict, lost = read.first(events, "verdict"), read.first(events, "lost_node")
    if lost and verdict.get("kind") != "network":
        return Blamed(_lost(read.text(lost.get("node")), ends))
    if verdict:
        return Blamed(_stuck(verdict, ends))
    if code in (codes.FINISHED, codes.STOPPED):
        return None
    silent = _silent(ends, step_code)
    is_asked = bool(_ENDING & set(read.signals(events)))
    is_live = code is None and step_code is not None
    failed = [end for end in ends.failed if is_live or end.code != codes.STOPPED]
    is_killed = bool(guard) or _is_step_killed(ends)
    is_silent_first = silent is not None and not is_asked and not (is_killed and failed)
    chosen = _chosen(events, excused=set(ends.up) if is_asked else set())
    cause = _cause(
        _Own(events, failed, ends.oom | set(ends.up), log_end),
        chosen,
        silent if is_silent_first else None,
    )
    if cause is None and not (guard or read.requests(events)):
        cause = _unstarted(events, ends, step_code)
    if cause is not None:
        return Blamed(cause)
    asked = silent or next(iter(ends.requested), None)
    is_by_us = bool(guard or read.requests(events))
    if not is_by_us and silent is None and _is_srun_killed(ends, step_code):
        return Blamed(End(None, None, codes.KILLED, "KILL"))
    return None if asked is None else Blamed(asked, by_request=True)


def _cause(own: _Own, chosen: End | None, silent: End | None) -> End | None:
    """Return the root cause; None if no rank failed."""
    if chosen is None:
        return silent or own.cause() or next(iter(own.ends), None)
    return own.cause() or chosen if own.follows(chosen) else chosen


def _lost(node: str | None, ends: Ends) -> End:
    """Blame a node, by its first rank that is missing."""
    missing = [rank for rank, where in ends.up.items() if where == node]
    there = missing or [rank for rank, where in ends.nodes.items() if where == node]
    return End(min(there, default=None), node, codes.KILLED, "KILL")


def _unstarted(events: Sequence[Event], ends: Ends, step_code: int | None) -> End | None:
    """Blame the first node on which no rank came up, where others did; else None."""
    nodes = read.last(events, "start").get("nodes")
    there = set(ends.nodes.values())
    if not step_code or not there or not isinstance(nodes, list):
        return None
    missing = [node for node in nodes if isinstance(node, str) and node not in there]
    # With 75 ranks end that Slurm has asked to, for this node: nobody asked the job.
    code = codes.FAILED if step_code == codes.STOPPED else step_code
    return End(None, missing[0], code, codes.signal_name(code)) if missing else None


def _stuck(verdict: Event, ends: Ends) -> End:
    """Blame the rank of a verdict, or a node as a whole; that it was killed then says nothing."""
    rank = read.integer(verdict.get("rank"))
    node = read.text(verdict.get("node")) or (None if rank is None else ends.nodes.get(rank))
    return End(rank, node, codes.HUNG, None)


def _silent(ends: Ends, step_code: int | None) -> End | None:
    """Return the rank that reported no end, None for all; if all ended well, a line was lost."""
    none_ended = not (ends.finished or ends.failed or ends.requested)
    if not ends.up or step_code == 0 or (step_code is None and none_ended):
        return None
    code = step_code if step_code is not None and step_code > 128 else codes.KILLED  # noqa: PLR2004
    if none_ended and _is_step_killed(ends):
        return End(None, None, code, codes.signal_name(code))
    rank = min(ends.up)
    return End(rank, ends.up[rank], code, codes.signal_name(code))


def _is_step_killed(ends: Ends) -> bool:
    """Whether agents were killed all over, and not one agent or one of several nodes."""
    silent = set(ends.up.values())
    return len(ends.up) > 1 and (len(silent) > 1 or silent == set(ends.nodes.values()))


def _is_srun_killed(ends: Ends, step_code: int | None) -> bool:
    """Whether the step was killed though no rank was: then Slurm asks all ranks to end."""
    killed = [end for end in ends.requested if end.code == codes.KILLED]
    return step_code == codes.KILLED and bool(ends.requested) and not killed


def _chosen(events: Sequence[Event], excused: set[int]) -> End | None:
    """Return what the supervisor found while the run was alive: it knew more than its events do."""
    end = read.end_of(read.last(events, "first_failure"))
    is_failure = end is not None and end.code not in (codes.FINISHED, codes.STOPPED)
    return end if end is not None and is_failure and end.rank not in excused else None


class _Own:
    """The ranks that failed without being asked to end."""

    def __init__(
        self, events: Sequence[Event], ends: list[End], silent: set[int], log_end: LogEnd
    ) -> None:
        self.ends = ends
        self._silent = silent
        self._log_end = log_end
        self._num_logs = 0
        self._errors = read.reported_errors(events)
        self._not_finite = _not_finite(events)

    def cause(self) -> End | None:
        """Return the first whose words are not that it lost a peer."""
        return next((end for end in sorted(self.ends, key=self._order) if self._leads(end)), None)

    def _order(self, end: End) -> int:
        if end.code != codes.FAILED:
            return 0
        return 1 if end.rank == self._not_finite else 2

    def _leads(self, end: End) -> bool:
        if self._is_silent(end) or end.rank in self._errors:
            return not self.follows(end)
        self._num_logs += 1  # of thousands of ranks not every log is read
        return self._num_logs <= _MAX_LOGS and not self.follows(end)

    def follows(self, end: End) -> bool:
        """Whether a rank says that it only lost a peer."""
        if end.rank is None or self._is_silent(end):
            return False
        error = read.reported_causes(self._errors.get(end.rank, {}))
        return bool(words.consequence(error, "" if error else self._log_end(end.rank)))

    def _is_silent(self, end: End) -> bool:
        is_clear = end.code == codes.STOPPED or end.rank in self._silent
        return is_clear or end.signal not in SPEAKS


def _not_finite(events: Sequence[Event]) -> int | None:
    """Name the rank whose loss was not finite: it ends all ranks with 70 at once."""
    event = read.last(events, "non_finite")
    ranks = event.get("ranks")
    if event.get("action") != "stop" or not isinstance(ranks, list) or not ranks:
        return None
    return read.integer(ranks[0])
