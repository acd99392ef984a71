"""One attempt of a run: how it began, who failed first and why, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monitor.runs import goodput
from monitor.runs.history import finite, integer, mappings, picked
from rundir import codes
from rundir.failure import classify, patterns
from rundir.failure.attempt import signals
from rundir.secrets import is_secret

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monitor.runs.history import Attempt
    from rundir.events import Event
    from rundir.failure import Failure

    Record = dict[str, Any]
    LogEnd = Callable[[int, int], str]
    """Gives the end of the log of (attempt, rank), empty if there is none."""

_OUTCOMES = {codes.FINISHED: "finished", codes.STOPPED: "stopped"}
_START_KEYS = ("place", "nodes", "world_size", "command", "restart_count", "image", "image_digest")
_DECISION_KEYS = ("decision", "reason", "restarts", "idle", "exclude")
_BAD_KEYS = ("node", "reason", "source", "until")
_VERDICT_KEYS = ("kind", "rank", "node", "gpu", "top", "text")


def describe(attempt: Attempt, later: Sequence[Attempt], log_end: LogEnd) -> Record:
    """Describe an attempt, complete as far as its events go."""
    start, code = attempt.last("start"), attempt.code
    found = classify(attempt.events, lambda rank: log_end(attempt.number, rank), code=code)
    outcome = _outcome(code, found)
    return {
        "attempt": attempt.number,
        "start_time": start.get("time") or (attempt.events[0].get("time") or None),
        "end_time": attempt.last("end").get("time") or attempt.lived[-1].get("time"),
        "outcome": outcome,
        "code": code,
        "failure_class": found.finding.failure_class,
        "failure": _failure(found),
        "first_failure": found.first._asdict() if found.first else None,
        "failures": [picked(e, ("rank", "error")) for e in attempt.all("failure")],
        "verdict": picked(attempt.last("verdict"), _VERDICT_KEYS) or None,
        "lost_nodes": [picked(e, ("node", "how")) for e in attempt.all("lost_node")],
        "bad_nodes": [picked(e, _BAD_KEYS) for e in attempt.all("bad_node")],
        "decision": picked(attempt.last("decision"), _DECISION_KEYS) or None,
        "checkpoint_used": picked(attempt.first("resume"), ("step", "path", "skipped")) or None,
        "last_step": attempt.last_step,
        "steps_lost": goodput.steps_lost(attempt, later),
        **{key: start.get(key) for key in ("job_id", *_START_KEYS)},
        "settings": _settings(attempt.last("settings").get("settings")),
        "signals": signals(attempt.events),
        "checkpoints": [picked(e, ("step", "path", "seconds")) for e in attempt.all("checkpoint")],
        "checkpoints_failed": [
            picked(e, ("step", "reason", "error")) for e in attempt.all("checkpoint_failed")
        ],
        "ranks": _ranks(attempt.events),
        "slow_ranks": slow_ranks(attempt),
        "summary": _summary(attempt, outcome),
    }


def _outcome(code: int | None, found: Failure) -> str:
    if code is None:
        return "finished" if found.finding == patterns.DONE else "killed"
    return _OUTCOMES.get(code, "failed")


def _failure(found: Failure) -> Record | None:
    """Describe the failure; None where there was none."""
    finding, first = found.finding, found.first
    if finding.failure_class is None:
        return None
    # what was ended for a verdict, or with its node, has a code of its own that says nothing
    is_own = first is not None and finding.place not in ("verdict", "node", "stop")
    return {
        "class": finding.failure_class,
        "words": finding.words,
        "rank": first.rank if first else None,
        "node": first.node if first else None,
        "code": first.code if first and is_own else found.code,
        "signal": first.signal if first and is_own else None,
        "error": found.error,
        "evidence": {"place": finding.place, "line": finding.line},
    }


# ---- the rest ------------------------------------------------------------------------------------


def _ranks(events: Sequence[Event]) -> list[Record]:
    """Each rank with its place and its end; `code` is None for one without a reported end."""
    ranks: dict[int, Record] = {}
    for event in events:
        number = integer(event.get("rank"))
        if number is None or event.get("event") not in ("rank_up", "rank_end"):
            continue
        rank = ranks.setdefault(
            number,
            dict.fromkeys(("rank", "local_rank", "node", "pid", "up_time", "end_time"))
            | {"rank": number, "code": None, "signal": None, "requested": None},
        )
        if event["event"] == "rank_up":
            rank |= picked(event, ("local_rank", "node", "pid")) | {"up_time": event.get("time")}
        else:
            rank |= picked(event, ("node", "code", "signal", "requested"))
            rank["end_time"] = event.get("time")
    return [ranks[number] for number in sorted(ranks)]


def slow_ranks(attempt: Attempt) -> list[Record]:
    """Name the ranks that were slower than their peers: by the summary.

    Without one those that half of the metrics' lines name, two at least, each by its worst.
    """
    summary = attempt.last("summary").get("summary")
    if isinstance(summary, dict) and "slow_ranks" in summary:
        reported = mappings(summary["slow_ranks"])
    else:
        lines: dict[str, list[Event]] = {}
        for line in attempt.metrics:
            for one in mappings(line.get("slow_ranks")):
                lines.setdefault(str(one.get("rank")), []).append(one)
        least = max(2, len(attempt.metrics) / 2)
        sustained = [named for named in lines.values() if len(named) >= least]
        reported = [
            max(named, key=lambda one: finite(one.get("ratio")) or 0.0) for named in sustained
        ]
    return [picked(one, ("rank", "node", "ratio", "cost_pct")) for one in reported if one]


def _summary(attempt: Attempt, outcome: str) -> Record:
    """Take the trainer's own last summary, else what can be derived from the metrics."""
    summary = attempt.last("summary").get("summary")
    if isinstance(summary, dict):
        return summary
    mine = attempt.metrics
    return {
        "outcome": outcome,
        "train_time_s": _last_value(mine, "train_time_s"),
        "samples_per_s": _last_value(mine, "samples_per_s"),
        "final_loss": _last_value(mine, "loss"),
        "test_accuracy": _last_value(mine, "test_accuracy"),
        "world_size": attempt.last("start").get("world_size"),
        "steps": _last_value(mine, "step"),
    }


def _last_value(lines: Sequence[Event], key: str) -> object:
    return next((line[key] for line in reversed(lines) if line.get(key) is not None), None)


def _settings(settings: object) -> Record:
    """Take the settings without secrets: the script removed them, we check again."""
    if not isinstance(settings, dict):
        return {}
    return {k: v for k, v in settings.items() if not is_secret(str(k))}
