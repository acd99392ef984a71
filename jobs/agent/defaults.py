"""What a rank has without prelaunch.sh, too: a run directory, and settings that can be read."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from jobs import checks
from jobs.checks import switch, whole_number
from jobs.messages import UsageError
from rundir.paths import run_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def read_switches(environ: Mapping[str, str]) -> dict[str, str]:
    """Write DEBUG and DDP_MONITOR as 1 or 0; DEBUG only where it is set."""
    env = dict(environ)
    env["DDP_MONITOR"] = switch("DDP_MONITOR", env.get("DDP_MONITOR") or "1")
    if "DEBUG" in env:
        env["DEBUG"] = switch("DEBUG", env["DEBUG"] or "0")
    return env


def complete(environ: Mapping[str, str]) -> dict[str, str]:
    """Name a run, where nobody has; what is set to nothing is not set. Raises UsageError."""
    env = dict(environ)
    whole_number("DDP_GRACE", env.get("DDP_GRACE") or "0", 0, 86400)
    now = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    job = env["DDP_JOB_ID"] = env.get("DDP_JOB_ID") or f"local-{now}-{os.getpid()}"
    out = env.get("DDP_OUT") or "out"
    checks.check_no_tilde("DDP_OUT", out)
    if not out.startswith("/"):
        out = f"{checks.working_directory()}/{out}"
    env["DDP_OUT"] = out
    attempt = env["DDP_ATTEMPT"] = env.get("DDP_ATTEMPT") or "1"
    whole_number("DDP_ATTEMPT", attempt, 1, 999_999_999)
    env["DDP_RUN_DIR"] = env.get("DDP_RUN_DIR") or os.path.join(out, run_name(job))
    env["DDP_LAUNCH_ID"] = env.get("DDP_LAUNCH_ID") or f"{job}.{attempt}.{os.getpid()}"
    return env


def make_writable(directories: Sequence[str], environ: Mapping[str, str]) -> None:
    """Make directories of the run. Raises UsageError."""
    remedy = "set DDP_OUT to a directory on the shared file system that you can write to"
    if not environ.get("SLURM_JOB_ID"):
        remedy = "set DDP_OUT to a directory that you can write to"
    made = checks.Made()
    try:
        for one in directories:
            checks.make_writable(one, made, environ["DDP_NODE"], lambda *_: remedy)
    except UsageError:
        made.remove()
        raise
