"""`python -m monitor why RUN_DIR`: why did it end, on one screen."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from monitor.runs import evidence, liveness, node_log, record, render, slurm
from monitor.runs.history import mappings, seconds
from rundir import secrets
from rundir.failure import patterns, words

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

    from rundir.events import Event

_NUM_LINES = 14  # of a log: more than the screen takes
_FAULT = re.compile(r"NVRM: Xid|\bXid \(|uncorrectable ECC|oom[-_ ]kill", re.IGNORECASE)
_GPU = re.compile(r"GPU (\d+)")
_NUM_FAULTS = 3
_SUMMARY = re.compile(r"FAILED  ")  # our trainer's, below its error
_NARROWEST = 20  # columns: the labels alone take eight


def add_options(parser: ArgumentParser) -> None:
    """Add its options."""
    parser.add_argument("run_dir", metavar="RUN_DIR", help="such as out/slurm-123")
    parser.add_argument("--json", action="store_true", help="one JSON document, for programs")


def run(options: Namespace) -> int:
    """Print what is known of a run's end; 0."""
    run_dir = os.path.abspath(options.run_dir)  # the monitor's logs lie beside it
    found = gather(run_dir)
    if options.json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return 0
    columns = max(_NARROWEST, min(100, shutil.get_terminal_size((80, 24)).columns))
    print("\n".join(render.lines(found, width=columns)))
    return 0


def gather(run_dir: str, now_s: float | None = None) -> dict[str, Any]:
    """Gather all there is: the record, the ranks' logs, the monitors' logs, and Slurm.

    Raises:
        UserError: the directory is none of a run.

    """
    run = evidence.load(run_dir)
    made = record.of(run)
    now_s = time.time() if now_s is None else now_s
    attempt = made["attempts"][-1]
    written_s = liveness.last_written_s(run_dir, attempt)
    quiet_s = None if written_s is None else max(0.0, now_s - written_s)
    end_s = seconds(attempt["end_time"])
    job = slurm.ask(attempt["job_id"], max(filter(None, (end_s, written_s)), default=None))
    state = liveness.state(run_dir, attempt, job, quiet_s)
    if state == "running":
        liveness.go_on(made, now_s)
    if job is not None:
        _believe(job, attempt)
    where = attempt["failure"] or {}
    rank = where.get("rank") or 0  # without a failed rank, rank 0
    log = node_log.of_node(run_dir, attempt, where.get("node"))
    log_path, log_end = run.logs.path(rank), run.logs.end(attempt["attempt"], rank)
    return {
        "run_dir": run_dir,
        "run": made["run"] or os.path.basename(run_dir),
        "state": state,
        "quiet_s": None if quiet_s is None else round(quiet_s, 1),
        "ended_s": None if end_s is None else round(max(0.0, now_s - end_s), 1),
        "attempt": attempt,
        "attempts": [_brief(one) for one in made["attempts"]],
        "said": _relevant(log_end),
        "log": log_path if os.path.exists(log_path) else None,
        "stack": _stack(run.events, attempt),
        "node": _node(log, attempt, where),
        "faults": _faults(log, log_end),
        "slurm": None if job is None else asdict(job),
        "decision": attempt["decision"],
        "steps_lost": made["steps_lost"],
        "goodput": made["goodput"],
        "slow_ranks": attempt["slow_ranks"],
        "next": render.advice(attempt, made),
        "num_unreadable_lines": made["num_unreadable_lines"],
    }


def _believe(job: slurm.Job, attempt: dict[str, Any]) -> None:
    """Take Slurm's word for the end of what was killed and could not say why."""
    failed = attempt["failure"]
    if job.state in patterns.BY_SLURM and failed is not None and failed["class"] == "killed":
        failed["class"], failed["words"] = patterns.BY_SLURM[job.state]
        failed["evidence"] = {"place": "slurm", "line": job.state}
        attempt["failure_class"] = failed["class"]


def _brief(attempt: dict[str, Any]) -> dict[str, Any]:
    keys = ("attempt", "start_time", "end_time", "outcome", "code", "failure_class", "steps_lost")
    failed = attempt["failure"] or {}
    return {key: attempt[key] for key in keys} | {
        "rank": failed.get("rank"),
        "node": failed.get("node"),
        "from_step": (attempt["checkpoint_used"] or {}).get("step"),
        "last_step": attempt["last_step"],
    }


def _relevant(text: str) -> list[str]:
    """Pick the lines of a log's end that explain most: a crash's stack, else the last."""
    text = secrets.hide_in_message(text)
    lines = [clean for line in text.splitlines() if (clean := render.clean(line)).strip()]
    summaries = [number for number, line in enumerate(lines) if _SUMMARY.match(line)]
    lines = lines[: summaries[-1]] if summaries else lines
    lines = [line for line in lines if not words.NO_REASON.match(line)]
    for start, line in enumerate(lines):
        if line.startswith("Fatal Python error"):
            return lines[start : start + _NUM_LINES]
    return lines[-_NUM_LINES:]


def _stack(events: Sequence[Event], attempt: dict[str, Any]) -> dict[str, Any] | None:
    """Give the stack of the rank that the watchdog named: its top line, and the file."""
    verdict = attempt["verdict"]
    if verdict is None:
        return None
    found = {"top": verdict["top"], "file": None}
    for event in events:
        if event.get("event") == "hang_report" and event.get("attempt") == attempt["attempt"]:
            for one in mappings(event.get("ranks")):
                if one.get("rank") == verdict["rank"]:
                    found = {"top": found["top"] or one.get("top"), "file": one.get("stack")}
    return found


def _node(
    log: node_log.NodeLog, attempt: dict[str, Any], where: dict[str, Any]
) -> dict[str, Any] | None:
    """Give the last that the monitor saw of the failed rank's GPU and node."""
    node = where.get("node")
    if node is None:
        return None
    sample = node_log.last(log, _gpu_of(log, attempt, where), seconds(attempt["end_time"]))
    if sample is None:
        return None
    throttle = node_log.throttle([sample])
    return {"node": node, "time_s": sample.time_s, "gpu": sample.index, "throttle": throttle} | {
        name: sample.values.get(name)
        for name in ("sm", "pwr", "gtemp", "fb", "pclk", "cpu", "hmem")
    }


def _gpu_of(log: node_log.NodeLog, attempt: dict[str, Any], where: dict[str, Any]) -> int | None:
    """Find the GPU of the failed rank: by the verdict on it, else by the log, else by its place."""
    rank, verdict = where.get("rank"), attempt["verdict"] or {}
    named = _GPU.fullmatch(str(verdict.get("gpu"))) if verdict.get("rank") == rank else None
    if named is not None:
        return int(named[1])
    return node_log.gpu_of(log, attempt, rank)


def _faults(log: node_log.NodeLog, text: str) -> Sequence[str]:
    """Collect lines that report the machine's own faults: XID, ECC, memory killer."""
    found = [render.clean(line).strip() for line in text.splitlines() if _FAULT.search(line)]
    return [*log.faults, *found][-_NUM_FAULTS:]
