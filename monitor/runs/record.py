"""The run record: a view of the run's events and metrics, composed anew at any time."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from monitor.errors import UserError
from monitor.logs.sample import total
from monitor.runs import attempt_record, evidence, goodput, history
from monitor.whole_file import replacing
from rundir import plain
from rundir.failure.attempt import last
from rundir.paths import RunDir

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monitor.runs.attempt_record import LogEnd
    from monitor.runs.evidence import Run
    from rundir.events import Event

    Watcher = Callable[["Record", "Record", float, float], "Record"]
    """Returns what the monitor saw of (attempt, slow rank) from one moment to another."""

Record = dict[str, Any]

_MAX_READS = 5


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
        events: what `events.jsonl` holds, oldest first; one at least.
        metrics: the last lines of each attempt's `metrics.jsonl`, oldest first.
        num_unreadable: how many lines of either were left out.
        log_end: the end of the log of (attempt, rank).
        watcher: what the monitor saw of (attempt, slow rank, from, to); asked for slow ranks only.

    """
    several = history.attempts(events, metrics)
    ledgers = goodput.of_attempts(several)
    made = [attempt_record.describe(a, several[i + 1 :], log_end) for i, a in enumerate(several)]
    for one, its_ledger, span in zip(made, ledgers, history.spans(several), strict=True):
        one["ledger"] = its_ledger.as_record()
        for slow in one["slow_ranks"]:
            slow["seen"] = watcher(one, slow, span.begin_s, span.end_s)
    newest = made[-1]
    start = last(events, "start")
    return {
        "job_id": start.get("job_id"),
        "run": start.get("run"),
        **{key: newest[key] for key in ("outcome", "code", "failure_class", "first_failure")},
        **{key: newest[key] for key in ("image", "image_digest", "nodes", "world_size", "command")},
        "decision": last(events, "decision").get("decision"),
        "steps_lost": total(one["steps_lost"] for one in made),
        "goodput": sum(ledgers, goodput.Ledger()).as_record(),
        "summary": newest["summary"],
        "environment": {
            name: s.get("value") if isinstance(s, dict) else s
            for name, s in newest["settings"].items()
        },
        "settings": newest["settings"],
        "attempts": made,
        "num_unreadable_lines": num_unreadable,
    }


def read(run_dir: str) -> Record:
    """Compose the record of a run directory, without writing it.

    Raises:
        UserError: there are no events to compose from.

    """
    return of(evidence.load(run_dir))


def of(run: Run) -> Record:
    """Compose the record of what a run directory holds."""
    return compose(
        run.events,
        run.metrics,
        run.num_unreadable,
        log_end=run.logs.end,
        watcher=_watcher(run.path),
    )


def _watcher(run_dir: str) -> Watcher:
    def poll(attempt: Record, slow: Record, begin_s: float, end_s: float) -> Record:
        from monitor.runs import node_log  # noqa: PLC0415 - only where a rank was slow

        log = node_log.of_node(run_dir, attempt, slow["node"])
        return node_log.seen(log, node_log.gpu_of(log, attempt, slow["rank"]), begin_s, end_s)

    return poll


def compose_file(run_dir: str) -> tuple[str, Record]:
    """Write `run.json` of a run directory, beside and renamed; its path, and the record.

    Events written while it composes are not missed: it reads again, so that of several writers the
    last one writes the newest view. Of a run that lives and reports something all the time, no view
    is the newest: it reads `_MAX_READS` times at most.

    Raises:
        UserError: there are no events to compose from, or the record could not be written.

    """
    run_dir = os.path.abspath(run_dir)  # the monitor's logs lie beside it
    target = RunDir(run_dir).record
    seen, made = -1, Record()
    for _ in range(_MAX_READS):
        if seen == (seen := _size(run_dir)):
            break
        made = read(run_dir)
        _replace(target, made)
    return target, made


def _size(run_dir: str) -> int:
    try:
        return plain.size_bytes(RunDir(run_dir).events)
    except OSError as error:
        raise evidence.no_run(run_dir, error) from error


def _replace(target: str, record: Record) -> None:
    try:
        with replacing(target) as path, open(path, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=2, ensure_ascii=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UserError(
            "run.json must be writable",
            f"{error.strerror} in {os.path.dirname(target)}",
            "make room or name a directory that you may write to",
        ) from error
