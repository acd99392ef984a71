"""One attempt of a run: how it began, who failed first and why, and what came of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from monitor.runs import failure, ledger
from monitor.runs.history import Attempt, integer, mappings, picked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monitor.events import Event

    Record = dict[str, Any]
    LogEnd = Callable[[int, int], str]
    """Gives the end of the log of (attempt, rank), empty if there is none."""

_OUTCOMES = {0: "finished", 75: "stopped"}
_STOPPED = 75
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSW", "CREDENTIAL")
_START_KEYS = ("place", "nodes", "world_size", "command", "restart_count", "image", "image_digest")
_END_KEYS = ("rank", "node", "code", "signal")
_DECISION_KEYS = ("decision", "reason", "restarts", "idle", "exclude")
_VERDICT_KEYS = ("kind", "rank", "node", "gpu", "top", "text")
_MAX_LOGS = 16  # of failed ranks are looked at for the one that failed by its own doing
_REASONS = (
    ("preempted", r"pre-?empt|Slurm has requeued"),
    ("time limit", r"time.?limit"),
    ("cancelled", r"cancel"),
)
_OWN_REQUEUE = re.compile(r"requeing job|Requeued SLURM job|requeued exp")
"""What Lightning's rank 0 says when it calls `scontrol requeue` itself, by its versions."""


def describe(attempt: Attempt, later: Sequence[Attempt], log_end: LogEnd) -> Record:
    """Describe an attempt, complete as far as its events go.

    Args:
        attempt: its events and metrics.
        later: the attempts after it, which tell what of it was kept.
        log_end: the end of a rank's own log.

    """
    start, code = attempt.last("start"), attempt.code
    ranks = _ranks(attempt.events)
    done = code is None and _all_done(ranks, start.get("world_size"))
    outcome = "finished" if done else "killed" if code is None else _OUTCOMES.get(code, "failed")
    first = first_failure(attempt, ranks, log_end)
    finding = failure.DONE if done else judge(attempt, first, log_end)
    return {
        "attempt": attempt.number,
        "start_time": start.get("time") or (attempt.events[0].get("time") or None),
        "end_time": attempt.last("end").get("time") or attempt.lived[-1].get("time"),
        "outcome": outcome,
        "code": code,
        "failure_class": finding.failure_class,
        "failure": _told(finding, first, attempt, log_end),
        "first_failure": picked(first, _END_KEYS) or None,
        "failures": [picked(e, ("rank", "error")) for e in attempt.all("failure")],
        "verdict": picked(attempt.last("verdict"), _VERDICT_KEYS) or None,
        "lost_nodes": [picked(e, ("node", "how")) for e in attempt.all("lost_node")],
        "decision": picked(attempt.last("decision"), _DECISION_KEYS) or None,
        "checkpoint_used": picked(attempt.first("resume"), ("step", "path", "skipped")) or None,
        "last_step": attempt.last_step,
        "steps_lost": ledger.steps_lost(attempt, later),
        **{key: start.get(key) for key in ("job_id", *_START_KEYS)},
        "settings": _settings(attempt.last("settings").get("settings")),
        "signals": _signals(attempt),
        "checkpoints": [picked(e, ("step", "path", "seconds")) for e in attempt.all("checkpoint")],
        "checkpoints_failed": [
            picked(e, ("step", "reason", "error")) for e in attempt.all("checkpoint_failed")
        ],
        "ranks": ranks,
        "slow_ranks": slow_ranks(attempt),
        "summary": _summary(attempt, outcome),
    }


def _all_done(ranks: Sequence[Record], world_size: object) -> bool:
    """Whether every rank ended with 0, so that only the script's own end is missing."""
    return bool(ranks) and len(ranks) == world_size and all(rank["code"] == 0 for rank in ranks)


def nothing() -> Record:
    """Describe an attempt of which no event is known."""
    return describe(Attempt(1, ({},), ()), (), lambda _attempt, _rank: "") | {
        "start_time": None,
        "end_time": None,
    }


# ---- who failed first ----------------------------------------------------------------------------


def first_failure(attempt: Attempt, ranks: Sequence[Record], log_end: LogEnd) -> Event:
    """Find the rank that failed first by its own doing; empty if none did.

    A lost node names it, or the watchdog's verdict; of both the node, for its ranks are what the
    others wait for, unless the verdict is that nodes do not reach each other. Else it is the
    script's choice, or the first that ended with a code without having been told to, unless its
    own words say that it only lost a peer and another's do not: the cause counts, not what
    followed from it.
    """
    by_number = {rank["rank"]: rank for rank in ranks}
    verdict, lost = attempt.last("verdict"), attempt.last("lost_node")
    if lost and verdict.get("kind") != "network":
        there = [rank for rank in ranks if rank["node"] == lost.get("node")]
        return there[0] if there else {**dict.fromkeys(_END_KEYS), "node": lost.get("node")}
    if integer(verdict.get("rank")) is not None:
        rank = by_number.get(verdict["rank"], {})
        return {**dict.fromkeys(_END_KEYS), **rank, "rank": verdict["rank"]} | {
            "node": verdict.get("node") or rank.get("node")
        }
    if verdict:
        return {**dict.fromkeys(_END_KEYS), "node": verdict.get("node")}
    if attempt.code in (0, _STOPPED):
        return {}
    suspects = _suspects(attempt, ranks)
    for suspect in suspects[:_MAX_LOGS]:
        if not failure.is_consequence(_line_of(attempt, suspect, log_end)):
            return suspect
    return suspects[0] if suspects else {}


def _suspects(attempt: Attempt, ranks: Sequence[Record]) -> list[Event]:
    """List who may have failed first, the likeliest first, each rank once."""
    told = attempt.last("first_failure")
    unended = [r for r in ranks if r["up_time"] and r["code"] is None and r["end_time"] is None]
    if attempt.code is None and len(unended) == len(ranks):
        unended = []  # nobody saw any end: the whole attempt was killed, or still runs
    # Slurm ends what was asked to end and did not, launchers too: such ranks did not fail first.
    is_asked = bool({"TERM", "INT", "HUP"} & set(_signals(attempt)))
    excused = {rank["rank"] for rank in unended} if is_asked else set()
    lost = [{**rank, "code": 137, "signal": "KILL"} for rank in unended]
    ended = [
        e for e in attempt.all("rank_end") if integer(e.get("code")) and not e.get("requested")
    ]
    found: dict[int | None, Event] = {}
    for one in [told, *lost, *ended]:
        if one and one.get("code") != _STOPPED and integer(one.get("rank")) not in excused:
            found.setdefault(integer(one.get("rank")), one)
    return list(found.values())


def _line_of(attempt: Attempt, suspect: Event, log_end: LogEnd) -> str:
    """Give a rank's own words for its end; none where a signal took them away."""
    rank = integer(suspect.get("rank"))
    if rank is None or suspect.get("signal") in ("KILL", "SEGV"):
        return ""
    return failure.headline(_error_of(attempt, rank), log_end(attempt.number, rank))


def _error_of(attempt: Attempt, rank: int) -> str | None:
    told = [e.get("error") for e in attempt.all("failure") if e.get("rank") == rank]
    return next((error for error in told if isinstance(error, str)), None)


# ---- and why -------------------------------------------------------------------------------------


def judge(attempt: Attempt, first: Event, log_end: LogEnd) -> failure.Finding:
    """Judge an attempt's end by the table of `failure`."""
    rank, code = integer(first.get("rank")), attempt.code
    text = "" if rank is None else log_end(attempt.number, rank)
    told = None if rank is None else _error_of(attempt, rank)
    errors = "\n".join(filter(None, (told, *failure.errors_in(text))))
    line = failure.headline(told, text)
    is_killed = first.get("signal") in ("KILL", "SEGV")
    has_failed = bool(first) and not is_killed
    is_consequence = has_failed and failure.is_consequence(line)
    signs = {
        "code": "" if code is None else str(code),
        "log": text if first else "",
        "oom": "true" if first and _was_oom(attempt, rank) else "",
        "node": _text(attempt.last("lost_node"), "node", "how"),
        "verdict": str(attempt.last("verdict").get("kind") or ""),
        "stop": _stop(attempt, log_end) if code == _STOPPED or not first else "",
        "error": errors if has_failed else "",
        "later": errors if has_failed and (attempt.last_step or 0) > 0 else "",
        "early": _ended_before(attempt, rank) if is_consequence else "",
        "follows": line if is_consequence else "",
        "nan": str(attempt.last("non_finite").get("action") or "") if has_failed else "",
        "save": "" if told or is_killed else _own_save(attempt),
        "signal": str(first.get("signal") or "") if first else "",
        "end": "none" if code is None else "",
    }
    return failure.Case(signs).judge()


def _was_oom(attempt: Attempt, rank: int | None) -> bool:
    """Whether the kernel ended the rank for want of memory, as its launcher saw it."""
    return any(e.get("rank") == rank and e.get("oom") is True for e in attempt.all("rank_end"))


def _ended_before(attempt: Attempt, rank: int | None) -> str:
    """Name a rank that had ended well before this one failed; empty if none had."""
    for event in attempt.all("rank_end"):
        if integer(event.get("rank")) == rank:
            break
        if event.get("code") == 0:
            return f"rank {event.get('rank')} on {event.get('node')} had ended with code 0"
    return ""


def _own_save(attempt: Attempt) -> str:
    """Give why the last checkpoint failed; empty if only because a peer was gone."""
    text = _text(attempt.last("checkpoint_failed"), "reason", "error")
    return "" if failure.is_consequence(text) else text


def _stop(attempt: Attempt, log_end: LogEnd) -> str:
    """Tell why the job was asked to end; empty if it was not.

    Slurm's own word, which stands in the decision's reason, beats what a signal can tell; only
    where the program says that it requeued the job itself, Slurm's requeue is no preemption.
    """
    reason = re.sub(r"DDP_RUN_NAME=\S+", "", str(attempt.last("decision").get("reason") or ""))
    signals = _signals(attempt)
    # what the trainer alone was told is no reason for an end that nobody told
    by_script = [e for e in attempt.all("signal") if e.get("source") != "trainer"]
    if (not signals and attempt.code != _STOPPED) or (attempt.code is None and not by_script):
        return ""
    if "Slurm has requeued" in reason and _OWN_REQUEUE.search(log_end(attempt.number, 0)):
        return "time limit" if "USR1" in signals else "itself"
    for name, pattern in _REASONS:
        if re.search(pattern, reason, re.IGNORECASE):
            return name
    if "USR1" in signals:
        return "time limit"
    if not by_script and _ended_by_itself(attempt):
        return "signalled" if signals else "itself"
    is_local = str(attempt.last("start").get("job_id") or "").startswith("local-")
    is_by_hand = "INT" in signals or "HUP" in signals or (bool(signals) and is_local)
    return "cancelled" if is_by_hand else "preempted"


def _ended_by_itself(attempt: Attempt) -> bool:
    """Whether nobody had told the first rank to end that did not end well."""
    ends = (event for event in attempt.all("rank_end") if event.get("code") != 0)
    return not next(ends, {}).get("requested", True)


def _signals(attempt: Attempt) -> list[str]:
    told = [e.get("signal") for e in attempt.all("signal")]
    return [signal.removeprefix("SIG") for signal in told if isinstance(signal, str)]


def _told(
    finding: failure.Finding, first: Event, attempt: Attempt, log_end: LogEnd
) -> Record | None:
    """Put the failure into words; None where there was none."""
    if finding.failure_class is None:
        return None
    rank, is_told = integer(first.get("rank")), finding.place in ("verdict", "node", "stop")
    error = None
    if rank is not None:
        error = failure.headline(_error_of(attempt, rank), log_end(attempt.number, rank)) or None
    return {
        "class": finding.failure_class,
        "words": finding.words,
        "rank": rank,
        "node": first.get("node"),
        # what was ended for its verdict, or with its node, has a code that says nothing
        "code": attempt.code if is_told else first.get("code", attempt.code),
        "signal": None if is_told else first.get("signal"),
        "error": error,
        "evidence": {"place": finding.place, "line": finding.line},
    }


def _text(event: Event, *keys: str) -> str:
    return ": ".join(str(event[key]) for key in keys if event.get(key))


# ---- the rest ------------------------------------------------------------------------------------


def _ranks(events: Sequence[Event]) -> list[Record]:
    """Each rank with its place and its end; `code` is None for one whose end nobody saw."""
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
        reported = [max(named, key=_ratio) for named in sustained]
    return [picked(one, ("rank", "node", "ratio", "cost_pct")) for one in reported]


def _ratio(one: Event) -> float:
    ratio = one.get("ratio")
    return float(ratio) if isinstance(ratio, int | float) else 0.0


def _summary(attempt: Attempt, outcome: str) -> Record:
    """Take the trainer's own last summary, else what can be derived from the metrics."""
    told = attempt.last("summary").get("summary")
    if isinstance(told, dict):
        return told
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
    """Take the settings without secrets: the script removed them, we look again."""
    if not isinstance(settings, dict):
        return {}
    return {k: v for k, v in settings.items() if not any(s in k.upper() for s in _SECRET)}
