"""One screen for a person: what happened, the evidence, what was lost, and what to do next."""

from __future__ import annotations

import re
import textwrap
from typing import Any

from monitor.runs.history import integer, time_of_day
from monitor.words import MIB_PER_GIB, minutes
from rundir import codes
from rundir.failure import patterns
from rundir.text import counted, listed

_ON_REQUEST = ("preempted", "time limit", "cancelled", "stopped")
_HEIGHT = 23  # of 24: the prompt comes after
_LABEL = 8
_MIN_SAID = 2
_MAX_SAID = 9
_MAX_HAPPENED = 72  # so that the class stands on the line, however long the error
_ESCAPE = re.compile(
    r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
    r"|[\u200e\u200f\u2028-\u202e\u2066-\u2069]"  # which end a line, or turn it around
)
_GO_ON = re.compile(r"(; )?to go on: start again.*")  # stands in the last line
_PREFIX = re.compile(r"^(\[rank\d+\]:\s?)*")
_GLUE = "\u00a0"  # keeps a number and its unit on one line

ADVICE: dict[str | None, str] = {
    None: "nothing: it is done",
    "user": "correct what the lines above name, and submit again; it is not tried again by itself",
    "program": "mend the program where the lines above point; DEBUG=1 tells more",
    "hardware": "exclude the node ({exclude}) and report it to the administrators",
    "network": "look at the links between the nodes (or exclude one: {exclude}); it may pass",
    "storage": "see that the disk has room, answers, and still holds the data (df -h, ls)",
    "preempted": "nothing is wrong: it gave way, and goes on where it stopped once it is started",
    "time limit": "nothing is wrong: start it again, or ask for more time (sbatch --time=…)",
    "cancelled": "nothing is wrong: somebody ended it",
    "stopped": "nothing is wrong: it requested a requeue (exit code 75)",
    "hung": "look at the line where that rank stands; if it only was slow, raise DDP_HANG_TIMEOUT",
    "killed": "look for who killed it: memory (sbatch --mem=…), an administrator, a node's reboot",
}
"""What to do next, one line a class."""
_INSTEAD = {
    patterns.NONE_STARTED: "see srun's words in the job's log: the image, its mounts, the nodes",
    patterns.PORT_TAKEN: "unset MASTER_PORT; where the program starts processes itself, as by"
    " mp.spawn, DDP_NPROC_PER_NODE=1",
    patterns.NO_DOWNLOAD: "download it before the job, to where all nodes read it: they may have no"
    " access to the Internet",
    patterns.NO_TASK: "start a Slurm task for each rank: --ntasks-per-node, no DDP_NPROC_PER_NODE",
}
"""The same where the words of the failure say more than its class."""

_PARTS = {
    "compute_s": "compute (goodput)",
    "start_up_s": "start-up",
    "data_wait_s": "data wait",
    "validation_s": "validation",
    "checkpoint_s": "checkpoints",
    "lost_s": "lost work",
    "restart_s": "between starts",
    "shutdown_s": "shutdown",
    "unknown_s": "",
}


def clean(line: str) -> str:
    """Take out what would move the cursor or colour the screen; tabs become spaces."""
    return _PREFIX.sub("", _ESCAPE.sub("", line.expandtabs(4))).rstrip()


def advice(attempt: dict[str, Any], record: dict[str, Any]) -> str:
    """Say what to do next, and how to go on from the last checkpoint."""
    text = ADVICE.get(attempt["failure_class"], ADVICE["program"])
    failure = attempt["failure"] or {}
    node = failure.get("node")
    is_refused = attempt["failure_class"] == "user" and not node  # such as an image without bash
    text = _INSTEAD.get(patterns.NONE_STARTED if is_refused else failure.get("words", ""), text)
    text = text.format(exclude=f"sbatch --exclude={node}" if node else "sbatch --exclude=NODE")
    decision = (attempt["decision"] or {}).get("decision")
    if attempt["failure_class"] is None or decision in ("requeue", "successor", "restart"):
        return text
    saved = max((integer(c["step"]) or 0 for c in attempt["checkpoints"]), default=None)
    used = (attempt["checkpoint_used"] or {}).get("step")
    step = used if saved is None else saved
    name = record["run"]
    if not name or not step:
        return text
    return f"{text}. To go on from step {step}: DDP_RUN_NAME={name} and submit as before"


def lines(found: dict[str, Any], width: int = 80) -> list[str]:
    """Write the screen: at most 23 lines of `width` characters."""
    before = [_cut(_ESCAPE.sub("", _headline(found).replace(_GLUE, " ")), width)]
    before += _block("run", _run(found), width, 2)
    after = _block("result", _result(found["attempt"]), width, 1)
    after += _evidence(found, width)
    after += _block("done", _done(found), width, 4)
    after += _block("lost", _lost(found), width, 2)
    after += _block("time", _time(found["goodput"], _unknown(found["attempt"])), width, 2)
    following = found["next"] if _is_over(found) else _wait(found)
    after += _block("next", following, width, 3, keeps_words=True)
    room = min(_MAX_SAID, max(_MIN_SAID, _HEIGHT - len(before) - len(after)))
    return (before + _message(found, width, room) + after)[: _HEIGHT + _MIN_SAID]


# ---- what happened -------------------------------------------------------------------------------


def _headline(found: dict[str, Any]) -> str:
    attempt, state = found["attempt"], found["state"]
    if state == "running":
        step = attempt["last_step"]
        at = "no step yet" if step is None else f"step {step}"
        return f"STILL RUNNING: {at}, last line {_ago(found['quiet_s'])}"
    if state == "unknown":
        return f"NO END REPORTED: last word {_ago(found['quiet_s'])}; if it still runs is not known"
    happened = _happened(attempt)
    waits = {"queued": "WAITING in Slurm's queue", "restarting": "STARTING AGAIN"}.get(state)
    if waits:
        return f"{waits}; before, {happened}"
    if attempt["outcome"] == "finished":
        note = "" if attempt["code"] == 0 else "; the script's own end is not reported"
        return f"FINISHED: all ranks ended well{note}"
    if attempt["failure_class"] in _ON_REQUEST:
        return f"STOPPED: {happened}"
    return f"{'KILLED' if attempt['outcome'] == 'killed' else 'FAILED'}: {happened}"


def _happened(attempt: dict[str, Any]) -> str:
    failed = attempt["failure"]
    if failed is None:
        return "all ranks ended well"
    who, words = "the run", failed["words"]
    if words == "failed" and failed["error"]:
        words = f"failed: {failed['error']}"
    if failed["rank"] is not None:
        who = f"rank {failed['rank']} on {failed['node']}"
    elif failed["node"] is not None:
        who = f"node {failed['node']}"
    how = f"code {failed['code']}" if failed["code"] is not None else "no exit code"
    if failed["signal"]:
        how = f"SIG{failed['signal']}, {how}"
    end = f" [{failed['class']}; {how}]"
    return f"{_cut(f'{who} {words}', _MAX_HAPPENED - len(end))}{end}"


def _run(found: dict[str, Any]) -> str:
    attempt = found["attempt"]
    nodes = attempt["nodes"] if isinstance(attempt["nodes"], list) else []
    size = attempt["world_size"]
    place = f", {counted(size, 'rank')} on {listed([*map(str, nodes)], 3)}" if nodes else ""
    when = "" if not _is_over(found) else f", ended {_ago(found['ended_s'])}"
    if found["state"] in ("killed", "unknown"):
        when = f", last heard of {_ago(found['ended_s'])}"
    total = max(len(found["attempts"]), attempt["attempt"])
    return f"{found['run']}: start {attempt['attempt']} of {total}{place}{when}"


def _result(attempt: dict[str, Any]) -> str:
    """Give the numbers of a sound end."""
    summary = attempt["summary"] or {}
    if attempt["code"] not in (codes.FINISHED, codes.STOPPED) or summary.get("steps") is None:
        return ""
    loss, accuracy = summary.get("final_loss"), summary.get("test_accuracy")
    parts = [f"step {summary['steps']}"]
    if isinstance(loss, float):
        parts.append(f"loss {loss:.4f}")
    if isinstance(accuracy, float):
        parts.append(f"test accuracy {100 * accuracy:.2f}{_GLUE}%")
    return ", ".join(parts)


def _message(found: dict[str, Any], width: int, room: int) -> list[str]:
    """Quote the log; of a traceback the first line and the last ones."""
    attempt, message = found["attempt"], found["said"]
    if attempt["failure"] is None:
        return []
    error = clean(str(attempt["failure"]["error"] or ""))
    if attempt["failure"]["rank"] is None:  # a node, of which an agent may have said something
        return _block("said", error, width, 4)
    if not message:
        return [_labelled("said", "nothing: its log is empty", width)]
    if not any(error[:40] in line for line in message):
        message = [*message, error]
    head = [] if len(message) <= room else message[:1] if message[0].startswith("Fatal") else []
    rest = message[-(room - len(head)) :] if not head else message[1:room]
    return [_labelled("said" if not i else "", line, width) for i, line in enumerate(head + rest)]


# ---- the evidence --------------------------------------------------------------------------------


def _evidence(found: dict[str, Any], width: int) -> list[str]:
    made: list[str] = []
    verdict, stack = found["attempt"]["verdict"], found["stack"]
    if verdict is not None and verdict["text"]:
        made += _block("verdict", str(verdict["text"]), width, 2)
    if stack is not None and stack["top"]:
        file = f" (all of it: {stack['file']})" if stack["file"] else ""
        made += _block("stack", f"{stack['top']}{file}", width, 2)
    failed = found["attempt"]["failure"]
    if failed is not None and failed["evidence"]["place"] == "early":
        made += _block("peer", failed["evidence"]["line"], width, 1)
    if found["log"] and found["attempt"]["code"] != 0:
        path = found["log"].removeprefix(found["run_dir"]).lstrip("/")
        made += _block("log", path, width, 1)
    for bad in found["attempt"]["bad_nodes"][:1]:
        made += _block("bad", f"node {bad['node']} left the job: {bad['reason']}", width, 2)
    for line in found["faults"]:
        made += _block("fault", line, width, 1)
    if found["node"] is not None:
        made += _block("node", _node(found["node"]), width, 2)
    for slow in found["slow_ranks"][:2]:
        made += _block("slow", slow_words(slow), width, 2)
    if found["slurm"] is not None:
        text = _slurm(found["attempt"]["job_id"], found["slurm"], is_over=_is_over(found))
        made += _block("Slurm", text, width, 1)
    return made


def _node(node: dict[str, Any]) -> str:
    moment = time_of_day(node["time_s"])
    gpu = "no GPU" if node["gpu"] is None else f"GPU {node['gpu']}"
    parts = [
        _reading("busy", node["sm"], "%"),
        _reading("", node["pwr"], "W"),
        _reading("", node["gtemp"], "C"),
        _reading("", node["pclk"], "MHz"),
        ", ".join(node["throttle"]),
    ]
    host = [_reading("CPUs", node["cpu"], "%"), _reading("memory", _gib(node["hmem"]), "GiB")]
    seen = ", ".join(filter(None, [*parts, *host]))
    return f"{node['node']}, {gpu} at {moment}: {seen or 'no readings'}"


def slow_words(slow: dict[str, Any]) -> str:
    """Say how slow a rank was, and what the monitor saw on its node."""
    seen = slow.get("seen") or {}
    parts = [
        _reading("", seen.get("sm_clock_mhz"), "MHz"),
        ", ".join(seen.get("throttle") or []),
        _reading("", seen.get("temp_c"), "C"),
        _reading("CPUs", seen.get("cpu_pct"), "%"),
    ]
    details = ", ".join(filter(None, parts))
    text = (
        f"rank {slow['rank']} on {slow['node']} took {slow['ratio']} x the median rank's time in"
        " forward and waiting for data"
    )
    if isinstance(slow["cost_pct"], int | float):
        text += f", {slow['cost_pct']:.0f} % of each step"
    return f"{text}: {details}" if details else text


def _slurm(job_id: object, job: dict[str, Any], *, is_over: bool) -> str:
    parts = [f"job {job_id} {job['state']}"]
    if job["exit_code"] and is_over:
        parts.append(f"exit code {job['exit_code']}")
    if job["reason"]:
        parts.append(f"reason {job['reason']}")
    return ", ".join(parts)


# ---- what came of it -----------------------------------------------------------------------------


def _done(found: dict[str, Any]) -> str:
    """Say what was done about it; earlier starts in a few words each."""
    earlier = [_attempt(one) for one in found["attempts"][:-1]][-3:]
    decision = found["decision"] or {}
    text = {
        "finish": "",
        "restart": "started again in the same allocation",
        "requeue": "sent back to Slurm's queue",
        "successor": "a successor was submitted",
        "fail": "not started again",
    }.get(str(decision.get("decision")), str(decision.get("decision") or ""))
    reason = _GO_ON.sub("", str(decision.get("reason") or "")).removeprefix("no restart: ")
    if text and reason:
        text += f": {reason}"
    if text and decision.get("exclude"):
        text += f"; without node {decision['exclude']}"
    return "; ".join(filter(None, [*earlier, text]))


def _attempt(one: dict[str, Any]) -> str:
    """Return an earlier start in a few words, such as `start 1: rank 3 on node2 (program)`."""
    what = one["failure_class"] or one["outcome"]
    if one["rank"] is not None:
        what = f"rank {one['rank']} on {one['node']} ({what})"
    reached = "" if one["last_step"] is None else f" at step {one['last_step']}"
    return f"start {one['attempt']}: {what}{reached}"


def _lost(found: dict[str, Any]) -> str:
    goodput, steps = found["goodput"], found["steps_lost"]
    parts = [counted(steps, "step")] if steps else []
    if goodput["lost_s"]:
        parts.append(f"{_duration(goodput['lost_s'])} of work")
    if goodput["restart_s"]:
        parts.append(f"{_duration(goodput['restart_s'])} between starts")
    if not parts and steps == 0 and _is_over(found):
        parts.append("nothing")
    text = ", ".join(parts)
    if found["num_unreadable_lines"]:
        text += f"{'; ' if text else ''}{found['num_unreadable_lines']} torn lines left out"
    return text


def _unknown(attempt: dict[str, Any]) -> str:
    """Name the time that was not reported: a command of the user's own reports none."""
    command = attempt["command"]
    is_foreign = isinstance(command, list) and command[:1] == ["--"]
    return "the command itself" if is_foreign else "not reported"


def _time(goodput: dict[str, Any], unknown: str) -> str:
    wall_s = goodput["wall_s"]
    if not wall_s:
        return ""
    shares = [
        f"{name or unknown} {100 * goodput[key] / wall_s:.0f}{_GLUE}%"
        for key, name in _PARTS.items()
        if goodput[key] >= wall_s / 200
    ]
    return f"{_duration(wall_s)}: {', '.join(shares)}"


def _is_over(found: dict[str, Any]) -> bool:
    return found["state"] in ("ended", "killed", "unknown")


def _wait(found: dict[str, Any]) -> str:
    if found["state"] == "queued":
        return "nothing: it goes on by itself when Slurm starts it"
    if found["state"] == "restarting":
        return "nothing: it goes on by itself"
    return f"watch it: tail -f {found['log']}" if found["log"] else "nothing: it runs"


# ---- how it is written ---------------------------------------------------------------------------


def _block(
    label: str, text: str, width: int, max_lines: int, *, keeps_words: bool = False
) -> list[str]:
    """Wrap `text`; with `keeps_words` a long one, such as a path to copy, stays whole."""
    if not text:
        return []
    wrapped = textwrap.wrap(
        clean(text),
        width - _LABEL,
        max_lines=max_lines,
        placeholder=" …",
        break_on_hyphens=False,
        break_long_words=not keeps_words,
    )
    room = max(width, _LABEL + max(map(len, wrapped))) if keeps_words else width
    return [_labelled(label if not i else "", line, room) for i, line in enumerate(wrapped)]


def _labelled(label: str, text: str, width: int) -> str:
    return _cut(f"{label:<{_LABEL}}{text.replace(_GLUE, ' ')}", width)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _reading(name: str, value: float | None, unit: str) -> str:
    return "" if value is None else f"{name} {value:g} {unit}".strip()


def _gib(mib: float | None) -> float | None:
    return None if mib is None else round(mib / MIB_PER_GIB, 1)


def _ago(seconds: float | None) -> str:
    return "at an unknown time" if seconds is None else f"{_duration(seconds)}{_GLUE}ago"


def _duration(seconds: float) -> str:
    """Write a time as people do, also one of days: 34 s, 12 min, 3 h 05 min, 2 d 4 h."""
    hours = round(seconds / 3600)
    text = f"{hours // 24} d {hours % 24} h" if hours >= 48 else minutes(seconds)  # noqa: PLR2004
    return text.replace(" ", _GLUE)
