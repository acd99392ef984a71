"""The run record: a view of the run's events and metrics, composed anew at any time."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from monitor import events as event_log
from monitor.errors import UserError
from monitor.logs import files
from monitor.plain import open_plain
from monitor.runs import attempts as views
from monitor.runs import evidence, history, ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monitor.events import Event
    from monitor.runs.attempts import LogEnd

    Watcher = Callable[["Record", "Record", float, float], "Record"]
    """Tells what the monitor saw of (attempt, slow rank) from one moment to another."""

Record = dict[str, Any]

_MAX_LOOKS = 5


def compose(
    events: Sequence[Event],
    metrics: Sequence[Event],
    num_unreadable: int = 0,
    *,
    log_end: LogEnd = lambda attempt, rank: "",  # noqa: ARG005 - no logs at hand
    watcher: Watcher = lambda attempt, slow, begin_s, end_s: {},  # noqa: ARG005 - no monitor's log
) -> Record:
    """Compose the record; it is complete as far as the events go, wherever they break off.

    Args:
        events: what `events.jsonl` holds, oldest first.
        metrics: the last lines of each attempt's `metrics.jsonl`, oldest first.
        num_unreadable: how many lines of either were left out.
        log_end: the end of the log of (attempt, rank).
        watcher: what the monitor saw of (attempt, slow rank, from, to); asked for slow ranks only.

    """
    several = history.attempts(events, metrics)
    ledgers = ledger.of_attempts(several)
    made = [views.describe(a, several[i + 1 :], log_end) for i, a in enumerate(several)]
    for one, its_ledger, span in zip(made, ledgers, history.spans(several), strict=True):
        one["ledger"] = its_ledger.as_record()
        for slow in one["slow_ranks"]:
            slow["seen"] = watcher(one, slow, span.begin_s, span.end_s)
    last = made[-1] if made else views.nothing()
    start = _last(events, "start")
    return {
        "job_id": start.get("job_id"),
        "run": start.get("run"),
        **{key: last[key] for key in ("outcome", "code", "failure_class", "first_failure")},
        **{key: last[key] for key in ("image", "image_digest", "nodes", "world_size", "command")},
        "decision": _last(events, "decision").get("decision"),
        "steps_lost": _total([one["steps_lost"] for one in made]),
        "goodput": sum(ledgers, ledger.Ledger()).as_record(),
        "summary": last["summary"],
        "environment": {name: _value(s) for name, s in last["settings"].items()},
        "settings": last["settings"],
        "attempts": made,
        "num_unreadable_lines": num_unreadable,
    }


def _last(events: Sequence[Event], name: str) -> Event:
    return next((event for event in reversed(events) if event.get("event") == name), {})


def _total(several: Sequence[int | None]) -> int | None:
    known = [one for one in several if one is not None]
    return sum(known) if known else None


def _value(setting: object) -> object:
    return setting.get("value") if isinstance(setting, dict) else setting


def read(run_dir: str) -> Record:
    """Compose the record of a run directory, without writing it.

    Raises:
        UserError: there are no events to compose from.

    """
    events, num_bad = event_log.read(_events_of(run_dir))
    numbers = [history.integer(event.get("attempt")) or 1 for event in events]
    path = os.path.join(run_dir, "metrics.jsonl")  # noqa: PTH118 - pathlib costs start time
    metrics, num_bad_metrics = evidence.last_metrics(path, sorted(set(numbers)))
    logs = evidence.RankLogs(run_dir, events)
    num_unreadable = num_bad + num_bad_metrics
    return compose(events, metrics, num_unreadable, log_end=logs.end, watcher=_watcher(run_dir))


def _watcher(run_dir: str) -> Watcher:
    def look(attempt: Record, slow: Record, begin_s: float, end_s: float) -> Record:
        from monitor.runs import nodes  # noqa: PLC0415 - only where a rank was slow

        log = nodes.read(nodes.path_of(run_dir, attempt["job_id"], slow["node"]))
        local = [rank["local_rank"] for rank in attempt["ranks"] if rank["rank"] == slow["rank"]]
        gpu = nodes.gpu_of(log, slow["rank"], history.integer(local[0]) if local else None)
        return nodes.seen(log, gpu, begin_s, end_s)

    return look


def compose_file(run_dir: str) -> str:
    """Write `run.json` of a run directory, beside and renamed; the path written.

    Events told while it composes are not missed: it looks again, so that of several writers the
    last one writes the newest view. Of a run that lives and tells something all the time, no view
    is the newest: it looks `_MAX_LOOKS` times at most.

    Raises:
        UserError: there are no events to compose from.
        OSError: the record could not be written.

    """
    run_dir = os.path.abspath(run_dir)  # noqa: PTH100 - the monitor's logs lie beside it
    target = os.path.join(run_dir, "run.json")  # noqa: PTH118
    seen = -1
    for _ in range(_MAX_LOOKS):
        if seen == (seen := _size(run_dir)):
            break
        _replace(target, read(run_dir))
    return target


def _events_of(run_dir: str) -> bytes:
    try:
        with open_plain(os.path.join(run_dir, "events.jsonl")) as file:  # noqa: PTH118
            data = file.read()
    except OSError as error:
        raise _no_run(run_dir, error) from error
    found = files.no_text(data)
    if found is not None:
        raise UserError(f"events.jsonl: must be UTF-8 text; found {found}: in {run_dir}")
    return data


def _size(run_dir: str) -> int:
    try:
        return os.stat(os.path.join(run_dir, "events.jsonl")).st_size  # noqa: PTH116, PTH118
    except OSError as error:
        raise _no_run(run_dir, error) from error


def _no_run(run_dir: str, error: OSError) -> UserError:
    return UserError(
        f"run directory: must hold events.jsonl; found {error.strerror} in {run_dir}:"
        " name the directory of a run, such as out/slurm-123"
    )


def _replace(target: str, record: Record) -> None:
    # With the node: of several, each may have a process of that number.
    beside = f"{target}.{os.uname().nodename}.{os.getpid()}.new"
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
