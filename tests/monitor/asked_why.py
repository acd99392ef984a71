"""Asks `why` about a run, as a user in a terminal would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def ask(
    directory: Path, *options: str, programs: Path | None = None, limit_s: float = 20
) -> subprocess.CompletedProcess[str]:
    """Run `why`, with no Slurm at hand unless a test brings one."""
    path = f"{programs}:/usr/bin:/bin" if programs else "/nowhere"
    return subprocess.run(
        [sys.executable, "-m", "monitor", "why", str(directory), *options],
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
        env={"PATH": path, "HOME": "/", "COLUMNS": "80", "LINES": "24", "TZ": "UTC"},
        cwd=ROOT,
    )


def shown(directory: Path, **how: Any) -> list[str]:
    """The screen, which fits a terminal of 80 x 24 and ends with what to do next."""
    done = ask(directory, **how)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) <= 23, done.stdout
    assert all(len(line) <= 80 or len(line.split()) == 1 for line in lines), done.stdout
    assert any(line.startswith("next    ") for line in lines[-3:]), done.stdout
    return lines


def stop(story: Any, signal_name: str, reason: str) -> None:
    """A job that was asked to end."""
    story.add_event("signal", signal=signal_name)
    story.rank_end(0, 75, requested=True)
    story.rank_end(1, 75, requested=True)
    story.add_event("decision", decision="requeue", reason=reason, restarts=0, idle=0, exclude=None)
    story.add_event("end", code=75)


def time_limit(story: Any) -> None:
    """SIGUSR1 before it."""
    stop(story, "USR1", "job 42 is requeued and will go on from step 20")


def killed(story: Any) -> None:
    """A signal from nowhere."""
    story.fail(1, 137, "KILL")
