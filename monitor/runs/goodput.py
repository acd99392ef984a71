"""Where the time went: every second between the first start and the last end, in one place."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from monitor.runs.history import mappings, number, seconds, spans, times
from rundir import codes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitor.runs.history import Attempt, Span
    from rundir.events import Event

_SOUND = (codes.FINISHED, codes.STOPPED)
_CUMULATIVE = ("data_wait_s", "checkpoint_s", "validation_s")


@dataclass(frozen=True, slots=True)
class Ledger:
    """Seconds by what they were spent on; together they are the wall time."""

    start_up_s: float = 0.0
    """Until the first step of an attempt was done."""
    data_wait_s: float = 0.0
    compute_s: float = 0.0
    """Steps that count: no later attempt had to do them again."""
    validation_s: float = 0.0
    checkpoint_s: float = 0.0
    """Training stood still for a checkpoint."""
    lost_s: float = 0.0
    """Steps that were done in vain, and standing still until a failure was seen."""
    restart_s: float = 0.0
    """Between an end and the next start, a queue included."""
    shutdown_s: float = 0.0
    """From the end of the work to the end of the attempt."""
    unknown_s: float = 0.0
    """Not reported: a foreign command, or the last moments of a killed run."""

    @property
    def wall_s(self) -> float:
        """The sum of all."""
        return float(sum(getattr(self, field.name) for field in fields(self)))

    def __add__(self, other: Ledger) -> Ledger:
        return Ledger(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def as_record(self) -> Event:
        """Give the parts, their sum, and the share that counted; None where no step was timed."""
        parts = {field.name: round(getattr(self, field.name), 3) for field in fields(self)}
        wall_s = round(self.wall_s, 3)
        is_known = self.unknown_s < self.wall_s and self.compute_s + self.lost_s > 0
        goodput = round(100 * self.compute_s / self.wall_s, 1) if is_known else None
        return {**parts, "wall_s": wall_s, "goodput_pct": goodput}


def of_attempts(attempts: Sequence[Attempt]) -> list[Ledger]:
    """Make a ledger per attempt; each begins where the one before ended.

    So all of them together are the time from the first start to the last end.
    """
    placed = spans(attempts)
    ledgers = []
    for index, (attempt, span) in enumerate(zip(attempts, placed, strict=True)):
        before_s = placed[index - 1].end_s if index else span.begin_s
        within = _within(attempt, span)
        kept = _kept_share(attempt, attempts[index + 1 :])
        counted = within.compute_s * kept
        ledgers.append(
            replace(
                within,
                compute_s=counted,
                lost_s=within.lost_s + within.compute_s - counted,
                restart_s=span.begin_s - before_s,
            )
        )
    return ledgers


def steps_lost(attempt: Attempt, later: Sequence[Attempt]) -> int | None:
    """How many steps were done in vain: those after the checkpoint that the next start used.

    Where there was no next start yet, those after the attempt's own last checkpoint.
    """
    undone = attempt.num_rolled_back
    if attempt.code == 0:
        return undone
    resumed = next((a.resumed_step for a in later if a.resumed_step is not None), None)
    kept = attempt.saved_step if resumed is None else resumed
    if attempt.last_step is None or kept is None:
        return None
    return max(0, attempt.last_step - kept) + undone


def _kept_share(attempt: Attempt, later: Sequence[Attempt]) -> float:
    """Return the share of this attempt's own steps that no later attempt did again, 0 to 1."""
    begin, last = attempt.resumed_step or 0, attempt.last_step
    if last is None or last <= begin:
        return 1.0
    resumed = [a.resumed_step for a in later if a.resumed_step is not None]
    if not resumed:
        saved = attempt.saved_step
        resumed = [last if attempt.code == 0 or saved is None else saved]
    kept = min(max(0, min(resumed) - begin), last - begin)
    return kept / (last - begin + attempt.num_rolled_back)


def _within(attempt: Attempt, span: Span) -> Ledger:
    """Divide an attempt's own time; the parts are cut so that none overlaps another."""
    moments = _Moments(attempt, span)
    totals = _cumulative(attempt)
    if moments.trained_from_s is None or moments.trained_to_s is None:
        return _untrained(attempt, span, moments)
    training_s = moments.trained_to_s - moments.trained_from_s
    parts = Ledger(start_up_s=moments.trained_from_s - span.begin_s)
    if totals:
        known = _fitted({name: totals.get(name, 0.0) for name in _CUMULATIVE}, training_s)
        parts = replace(parts, **known, compute_s=training_s - sum(known.values()))
    else:
        parts = replace(parts, unknown_s=training_s)
    still_s = moments.work_ended_s - moments.trained_to_s
    if attempt.code is None or attempt.code in _SOUND:
        # unknown after the last number of a killed run; else it is the way to the end
        parts = replace(parts, unknown_s=parts.unknown_s + still_s)
    else:
        parts = replace(parts, lost_s=still_s)
    return replace(parts, shutdown_s=span.end_s - moments.work_ended_s)


def _untrained(attempt: Attempt, span: Span, moments: _Moments) -> Ledger:
    """Divide the time of an attempt without reported steps."""
    up_s = moments.work_ended_s if not attempt.is_foreign else moments.up_s
    return Ledger(
        start_up_s=up_s - span.begin_s,
        unknown_s=moments.work_ended_s - up_s,
        shutdown_s=span.end_s - moments.work_ended_s,
    )


class _Moments:
    """The moments that divide an attempt, each no earlier than the one before."""

    def __init__(self, attempt: Attempt, span: Span) -> None:
        ends_s = times(attempt.all("rank_end"))
        trained = _trained(attempt)
        self.up_s = _between(span.begin_s, max(times(attempt.all("rank_up")), default=None), span)
        self.trained_from_s: float | None = None
        self.trained_to_s: float | None = None
        at_s = self.up_s
        if trained is not None:
            self.trained_from_s = _between(span.begin_s, trained[0], span)
            self.trained_to_s = at_s = _between(self.trained_from_s, trained[1], span)
        is_over = bool(ends_s) or attempt.code is not None
        ended_s = min(ends_s) if ends_s else (at_s if is_over else span.end_s)
        if attempt.code in _SOUND and trained is not None:
            ended_s = at_s  # what follows the last number of a sound end is the way out
        self.work_ended_s = _between(at_s, ended_s, span)


def _trained(attempt: Attempt) -> tuple[float, float] | None:
    """Return from when to when there are numbers of steps; None if there are none."""
    lines = [*attempt.metrics, *attempt.all("ledger")]
    times_s = sorted(times(lines))
    first = seconds(attempt.last("first_step").get("time"))
    if first is None and times_s:
        first = _loop_began_s(attempt.metrics)
    if first is None:
        return None
    stood_s = _stood_from_s(attempt)
    last = max([first, *times_s])
    return first, last if stood_s is None else max(first, min(last, stood_s))


def _stood_from_s(attempt: Attempt) -> float | None:
    """Return since when the steps had stood still when the watchdog gave its verdict."""
    verdict_s = seconds(attempt.last("verdict").get("time"))
    if verdict_s is None:
        return None
    reports = [mappings(event.get("ranks")) for event in attempt.all("hang_report")]
    ages = [number(rank.get("age_s")) for ranks in reports for rank in ranks]
    return verdict_s - max((age for age in ages if age is not None), default=0.0)


def _loop_began_s(metrics: Sequence[Event]) -> float | None:
    for line in metrics:
        at_s, train_s = seconds(line.get("time")), number(line.get("train_time_s"))
        if at_s is not None and train_s is not None:
            return at_s - train_s
    return None


def _cumulative(attempt: Attempt) -> dict[str, float]:
    """Take the trainer's own sums, the last of them; empty where it reported none."""
    lines = [*attempt.metrics, *attempt.all("ledger")]
    totals: dict[str, float] = {}
    for line in lines:
        for name in _CUMULATIVE:
            value = number(line.get(name))
            if value is not None:
                totals[name] = max(value, totals.get(name, 0.0))
    if totals and "checkpoint_s" not in totals:
        stalls = (number(event.get("stall_s")) for event in attempt.all("checkpoint"))
        totals["checkpoint_s"] = sum(stall for stall in stalls if stall is not None)
    return totals


def _fitted(parts: dict[str, float], limit_s: float) -> dict[str, float]:
    """Cut parts in proportion where rounding made them more than there was."""
    total_s = sum(parts.values())
    if total_s <= limit_s or not total_s:
        return parts
    return {name: value * limit_s / total_s for name, value in parts.items()}


def _between(low_s: float, time_s: float | None, span: Span) -> float:
    return min(max(low_s, low_s if time_s is None else time_s), span.end_s)
