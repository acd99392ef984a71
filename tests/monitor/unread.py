"""Runs a command of the monitor whose output is not read, as `… | head -n 0` does."""

from __future__ import annotations

import shlex
import subprocess
import sys


def run_unread(*words: object) -> list[str]:
    """Run `python -m monitor WORDS`; return the words on stderr, of which the last is its code."""
    command = shlex.join([sys.executable, "-m", "monitor", *map(str, words)])
    done = subprocess.run(
        ["bash", "-c", f"({command}; echo $? >&2) | true"],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr.split()
