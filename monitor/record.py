"""The run record: a view of the run's events and metrics, composed anew at any time."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from monitor import events as event_log
from monitor.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitor.events import Event

Record = dict[str, Any]

_TAIL_BYTES = 2**20  # of metrics.jsonl: the last lines are enough, the file may be large
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSW", "CREDENTIAL")
_OUTCOMES = {0: "finished", 75: "stopped"}
_CLASSES = {0: None, 64: "user", 75: "preempted", 76: "hung"}
_START_KEYS = ("place", "nodes", "world_size", "command", "restart_count", "image", "image_digest")


def compose(events: Sequence[Event], metrics: Sequence[Event], num_unreadable: int = 0) -> Record:
    """Compose the record; it is complete as far as the events go, wherever they break off.

    Args:
        events: what `events.jsonl` holds, oldest first.
        metrics: the last lines of `metrics.jsonl`, oldest first.
        num_unreadable: how many lines of either were left out.

    """
    numbers = sorted({_attempt_of(event) for event in events})
    attempts = [_attempt(n, [e for e in events if _attempt_of(e) == n], metrics) for n in numbers]
    last = attempts[-1] if attempts else _attempt(1, [], metrics)
    start = _last(events, "start")
    return {
        "job_id": start.get("job_id"),
        "run": start.get("run"),
        **{key: last[key] for key in ("outcome", "code", "failure_class", "first_failure")},
        **{key: last[key] for key in ("image", "image_digest", "nodes", "world_size", "command")},
        "decision": _last(events, "decision").get("decision"),
        "summary": last["summary"],
        "environment": {name: _value(s) for name, s in last["settings"].items()},
        "settings": last["settings"],
        "attempts": attempts,
        "num_unreadable_lines": num_unreadable,
    }


def _attempt(number: int, events: Sequence[Event], metrics: Sequence[Event]) -> Record:
    start, end = _last(events, "start"), _last(events, "end")
    code = _int(end.get("code"))
    ranks = _ranks(events)
    outcome = "killed" if code is None else _OUTCOMES.get(code, "failed")
    signals = [e.get("signal") for e in events if e.get("event") == "signal"]
    first_failure = _picked(_last(events, "first_failure"), ("rank", "node", "code", "signal"))
    return {
        "attempt": number,
        "start_time": start.get("time") or (events[0].get("time") if events else None),
        "end_time": end.get("time") or (events[-1].get("time") if events else None),
        "outcome": outcome,
        "code": code,
        "failure_class": _class(code),
        "first_failure": first_failure or _first_bad(ranks),
        "failures": [_picked(e, ("rank", "error")) for e in events if e.get("event") == "failure"],
        **{key: start.get(key) for key in _START_KEYS},
        "settings": _settings(_last(events, "settings").get("settings")),
        "signals": [s for s in signals if s is not None],
        "checkpoints": [
            _picked(e, ("step", "path", "seconds"))
            for e in events
            if e.get("event") == "checkpoint"
        ],
        "ranks": ranks,
        "summary": _summary(number, events, metrics, outcome),
    }


def _class(code: int | None) -> str | None:
    """Who is to blame; an attempt that never told its end was killed from outside."""
    if code is None:
        return "killed"
    return _CLASSES.get(code, "signal" if code > 128 else "program")  # noqa: PLR2004


def _ranks(events: Sequence[Event]) -> list[Record]:
    """Each rank with its place and its end; `code` is None for one whose end nobody saw."""
    ranks: dict[int, Record] = {}
    for event in events:
        number = _int(event.get("rank"))
        if number is None or event.get("event") not in ("rank_up", "rank_end"):
            continue
        rank = ranks.setdefault(
            number,
            dict.fromkeys(("rank", "local_rank", "node", "pid", "up_time", "end_time"))
            | {"rank": number, "code": None, "signal": None, "requested": None},
        )
        if event["event"] == "rank_up":
            rank |= _picked(event, ("local_rank", "node", "pid")) | {"up_time": event.get("time")}
        else:
            rank |= _picked(event, ("node", "code", "signal", "requested"))
            rank["end_time"] = event.get("time")
    return [ranks[number] for number in sorted(ranks)]


def _first_bad(ranks: Sequence[Record]) -> Record | None:
    """Where nobody named the first failure: the rank that failed first without being told to."""
    bad = [r for r in ranks if r["code"] and not r["requested"]]
    if not bad:
        return None
    first = min(bad, key=lambda r: str(r["end_time"]))
    return _picked(first, ("rank", "node", "code", "signal"))


def _summary(
    number: int, events: Sequence[Event], metrics: Sequence[Event], outcome: str
) -> Record:
    """Take the trainer's own last summary, else what can be derived from the metrics."""
    told = _last(events, "summary").get("summary")
    if isinstance(told, dict):
        return told
    mine = _metrics_of(number, events, metrics)
    return {
        "outcome": outcome,
        "train_time_s": _last_value(mine, "train_time_s"),
        "samples_per_s": _last_value(mine, "samples_per_s"),
        "final_loss": _last_value(mine, "loss"),
        "test_accuracy": _last_value(mine, "test_accuracy"),
        "world_size": _last(events, "start").get("world_size"),
        "steps": _last_value(mine, "step"),
    }


def _metrics_of(number: int, events: Sequence[Event], metrics: Sequence[Event]) -> list[Event]:
    """Pick the metrics of one attempt: by number, else by time."""
    since = str(events[0].get("time", "")) if events else ""
    return [
        line
        for line in metrics
        if (line.get("attempt") == number if "attempt" in line else _time(line) >= since)
        and "step" in line
    ]


def _time(line: Event) -> str:
    """Give a line's time; one that has none is taken for recent."""
    return str(line.get("time", "~"))


def _last_value(lines: Sequence[Event], key: str) -> object:
    return next((line[key] for line in reversed(lines) if line.get(key) is not None), None)


def _last(events: Sequence[Event], name: str) -> Event:
    return next((event for event in reversed(events) if event.get("event") == name), {})


def _picked(event: Event, keys: Sequence[str]) -> Record:
    return {key: event.get(key) for key in keys} if event else {}


def _attempt_of(event: Event) -> int:
    return _int(event.get("attempt")) or 1


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _settings(settings: object) -> Record:
    """Take the settings without secrets: the script removed them, we look again."""
    if not isinstance(settings, dict):
        return {}
    return {k: v for k, v in settings.items() if not any(s in k.upper() for s in _SECRET)}


def _value(setting: object) -> object:
    return setting.get("value") if isinstance(setting, dict) else setting


def compose_file(run_dir: str) -> str:
    """Write `run.json` of a run directory, beside and renamed; the path written.

    Events told while it composes are not missed: it looks again, so that of several writers the
    last one writes the newest view.

    Raises:
        UserError: there are no events to compose from.
        OSError: the record could not be written.

    """
    source = os.path.join(run_dir, "events.jsonl")  # noqa: PTH118 - pathlib costs start time
    target = os.path.join(run_dir, "run.json")  # noqa: PTH118
    seen = -1
    while seen != (seen := _size(source, run_dir)):
        events, num_bad = event_log.read(_tail(source, None))
        metrics, num_bad_metrics = event_log.read(_metrics_tail(run_dir))
        _replace(target, compose(events, metrics, num_bad + num_bad_metrics))
    return target


def _size(source: str, run_dir: str) -> int:
    try:
        return os.stat(source).st_size  # noqa: PTH116
    except OSError as error:
        raise UserError(
            f"run directory: must hold events.jsonl; found {error.strerror} in {run_dir}:"
            " name the directory of a run, such as out/slurm-123"
        ) from error


def _metrics_tail(run_dir: str) -> bytes:
    try:
        return _tail(os.path.join(run_dir, "metrics.jsonl"), _TAIL_BYTES)  # noqa: PTH118
    except OSError:
        return b""  # a run that ended before its first step has none


def _tail(path: str, num_bytes: int | None) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123
        size = os.fstat(file.fileno()).st_size
        if num_bytes is None or size <= num_bytes:
            return file.read()
        file.seek(size - num_bytes)
        return file.read().partition(b"\n")[2]


def _replace(target: str, record: Record) -> None:
    beside = f"{target}.{os.getpid()}.new"
    try:
        with open(beside, "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump(record, file, indent=2, ensure_ascii=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target)  # noqa: PTH105
    except OSError:
        if os.path.exists(beside):  # noqa: PTH110
            os.unlink(beside)  # noqa: PTH108
        raise
