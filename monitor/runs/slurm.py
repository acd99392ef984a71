"""What Slurm itself says of a job, if a client is here and answers in time."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import datetime

_JOB_ID = re.compile(r"[0-9]+(_[0-9]+)?")
_RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")
_QUEUED = ("PENDING", "REQUEUED", "CONFIGURING", "REQUEUE_HOLD", "SPECIAL_EXIT", "REQUEUE_FED")
_LIMIT_S = 5.0  # for all questions together
_LATEST_S = 300.0  # a job that was submitted this long after the run's last word is another one


@dataclass(frozen=True, slots=True)
class Job:
    """Slurm's own words: state, exit code as code:signal, reason and nodes, None where unknown."""

    state: str
    exit_code: str | None = None
    reason: str | None = None
    nodes: str | None = None

    @property
    def is_running(self) -> bool:
        """Whether it still holds nodes."""
        return self.state in _RUNNING

    @property
    def is_queued(self) -> bool:
        """Whether it waits for nodes."""
        return self.state in _QUEUED


def ask(job_id: object, last_word_s: float | None = None) -> Job | None:
    """Ask the controller, and where it has forgotten the job, the accounting.

    Args:
        job_id: as the run knows it; one that is not Slurm's is not asked for.
        last_word_s: when the run last reported; a job submitted much later is not this one.

    Returns:
        None if Slurm does not know the job, or does not answer.

    """
    if not isinstance(job_id, str) or not _JOB_ID.fullmatch(job_id):
        return None
    deadline_s = time.monotonic() + _LIMIT_S
    shown = _run(["scontrol", "show", "job", "--oneliner", job_id], deadline_s)
    if shown is not None:
        return _of_scontrol(shown, last_word_s)
    listed = _run(
        ["sacct", "-j", job_id, "-X", "-n", "-P", "-o", "State,ExitCode,Reason,NodeList,Submit"],
        deadline_s,
    )
    return _of_sacct(listed, last_word_s) if listed is not None else None


def _run(command: list[str], deadline_s: float) -> str | None:
    import subprocess  # noqa: PLC0415 - only where Slurm is asked

    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=max(0.1, deadline_s - time.monotonic()),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 and done.stdout.strip() else None


def _of_scontrol(text: str, last_word_s: float | None) -> Job | None:
    # of an array's several lines the last one is the task that has no job id of its own
    line = text.strip().splitlines()[-1]
    line, _, _ = line.partition(" Command=")  # from there on a user's words may look like fields
    fields = dict(re.findall(r"(?:^| )([A-Za-z:]+)=(\S*)", line))
    state = fields.get("JobState")
    if not state or _is_later(fields.get("SubmitTime"), last_word_s):
        return None
    return Job(state, fields.get("ExitCode"), _known(fields.get("Reason")), fields.get("NodeList"))


def _of_sacct(text: str, last_word_s: float | None) -> Job | None:
    cells = text.strip().splitlines()[-1].split("|")
    state, exit_code, reason, nodes, submitted = [*cells, *[""] * 5][:5]
    if not state or _is_later(submitted, last_word_s):
        return None
    # "CANCELLED by 1000"
    return Job(state.split()[0], exit_code or None, _known(reason), nodes or None)


def _known(reason: str | None) -> str | None:
    return None if reason in (None, "", "None") else reason


def _is_later(submitted: str | None, last_word_s: float | None) -> bool:
    if last_word_s is None or not submitted:
        return False
    try:
        return datetime.fromisoformat(submitted).timestamp() > last_word_s + _LATEST_S
    except ValueError:
        return False
