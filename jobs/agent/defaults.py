"""What a rank has without prelaunch.sh, too: a run directory, and settings that can be read."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from jobs.messages import UsageError, one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

_ON = frozenset(("1", "on", "y", "yes", "t", "true"))
_OFF = frozenset(("0", "off", "n", "no", "f", "false"))


def read_switches(environ: Mapping[str, str]) -> dict[str, str]:
    """Write DEBUG and DDP_MONITOR as 1 or 0; DEBUG only where it is set."""
    env = dict(environ)
    env["DDP_MONITOR"] = _switch("DDP_MONITOR", env.get("DDP_MONITOR") or "1")
    if "DEBUG" in env:
        env["DEBUG"] = _switch("DEBUG", env["DEBUG"] or "0")
    return env


def _switch(name: str, value: str) -> str:
    if value.lower() not in _ON | _OFF:
        raise UsageError(
            f"{name} must be 1/0, on/off, yes/no or true/false",
            f"'{value}'",
            "set one of these, or unset it",
        )
    return "1" if value.lower() in _ON else "0"


def complete(environ: Mapping[str, str]) -> dict[str, str]:
    """Name a run, where nobody has; what is set to nothing is not set."""
    env = dict(environ)

    now = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    job = env["DDP_JOB_ID"] = env.get("DDP_JOB_ID") or f"local-{now}-{os.getpid()}"
    out = env["DDP_OUT"] = env.get("DDP_OUT") or os.path.join(os.getcwd(), "out")
    attempt = env["DDP_ATTEMPT"] = env.get("DDP_ATTEMPT") or "1"
    env["DDP_RUN_DIR"] = env.get("DDP_RUN_DIR") or os.path.join(out, f"slurm-{job}")
    env["DDP_LAUNCH_ID"] = env.get("DDP_LAUNCH_ID") or f"{job}.{attempt}.{os.getpid()}"
    return env


def make_writable(directory: str, environ: Mapping[str, str]) -> None:
    """Make a directory of the run, or say who may not write where.

    Raises:
        UsageError: it cannot be made, or not be written to.

    """
    why = "Permission denied"
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        why = error.strerror or str(error)
    if os.path.isdir(directory) and os.access(directory, os.W_OK):
        return
    there = directory
    while not os.path.exists(there):
        there = os.path.dirname(there)
    place = "a directory on the shared file system"
    if not environ.get("SLURM_JOB_ID"):
        place = "a directory that you can write to"
    raise UsageError(
        "the run directory must be writable",
        f"that user {os.geteuid()} cannot write to {there} of user {os.stat(there).st_uid}"
        f" on {environ['DDP_NODE']} ({one_line(why)})",
        f"set DDP_OUT to {place}",
    )
