"""What `scontrol show` prints, read.

Seen with Slurm 22.05: `scontrol requeue` works on a running job, and on one that is completing
after its time limit or a preemption by cancelling; it is refused where Requeue=0; and it brings
back a job that was cancelled, too, which therefore must be distinguished from the others.
"""

from __future__ import annotations

import re
import time

_USERS_WORDS = re.compile(r" *(Command|SubmitLine|WorkDir|Std(Err|In|Out)|[A-Za-z]*Comment|Extra)=")
"""Lines in which anything may stand, because a user wrote it."""


def field(info: str, name: str) -> str:
    """Read a field without spaces; empty where it is not set."""
    for line in info.splitlines():
        if _USERS_WORDS.match(line):
            continue
        found = re.search(rf"(?:^|.* ){name}=([^ ]+)", re.sub(" JobName=.*", "", line))
        if found:
            return "" if found[1] in ("(null)", "N/A") else found[1]
    return ""


def path_field(info: str, name: str) -> str:
    """Read a field that may hold spaces. Slurm before 26.05 writes one behind a comment."""
    for line in info.splitlines():
        found = re.match(rf" *{name}=(.*?) ?$", line)
        if found:
            return found[1]
    return ""


def fate(info: str, restart_count: int) -> str:
    """Say what Slurm has in mind with the job.

    Returns:
        running, preempted, requeued (by Slurm itself), time limit or whatever reason Slurm gives,
        cancelled (by a person), unknown. A completing job does not show its state: it was
        cancelled if nothing else explains its end.

    """
    state, reason = field(info, "JobState"), field(info, "Reason") or "None"
    restarts = field(info, "Restarts")
    if not state:
        return "unknown"
    if restarts.isdigit() and int(restarts) > restart_count:
        return "requeued"
    if (field(info, "PreemptTime") or "None") != "None" or "PREEMPTED" in state:
        return "preempted"
    # The flags hide the state: the signal before the time limit makes it SIGNALING for a while.
    if state in ("RUNNING", "SIGNALING", "RESIZING", "CONFIGURING", "SUSPENDED", "STOPPED"):
        return "running"
    if "TIMEOUT" in state or reason == "TimeLimit":
        return "time limit"
    return reason if reason != "None" else "cancelled"  # such as NodeDown


def owner(info: str) -> tuple[str, str, str] | None:
    """Read the job's user: the name as Slurm writes it, the number, and the group's number."""
    user, group = field(info, "UserId"), field(info, "GroupId")
    found = [re.search(r"\((\d+)\)$", text) for text in (user, group)]
    return (user, found[0][1], found[1][1]) if found[0] and found[1] else None


def local_time(text: str) -> int | None:
    """Read a time as Slurm prints it: seconds since the epoch, None where it is none."""
    moment = _moment(text)
    return None if moment is None else int(time.mktime(time.struct_time((*moment, 0, 0, -1))))


def utc_time(text: str) -> int | None:
    """Read the time of an event."""
    import calendar  # noqa: PLC0415 -- rarely needed

    moment = _moment(text)
    return None if moment is None else calendar.timegm((*moment, 0, 0, 0))


def _moment(text: str) -> tuple[int, ...] | None:
    """Read year to second; time.strptime costs more than all else of a start."""
    found = re.match(r"(\d+)-(\d+)-(\d+)T(\d+):(\d+):(\d+)", text)
    return tuple(map(int, found.groups())) if found else None
