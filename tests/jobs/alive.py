"""What a run in place has told, and which of its processes live."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from tests.growing import events_below

LEAVES_CHILDREN = "setsid sleep 600 & sleep 601 & wait"
"""A rank's command with two children, one of them in a session of its own."""


def wait_for(directory: Path, event: str, count: int, timeout_s: float = 20) -> list[dict]:
    """Waits until the run's events hold the event that often."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = events_below(directory, event)
        if len(found) >= count:
            return found
        time.sleep(0.02)
    raise AssertionError(f"no {count} events {event} within {timeout_s} s")


def sleeps(pid: int) -> int:
    """Wait until a process's threads sleep and go on sleeping; how often they have gone to sleep.

    While nothing wakes one, the number stays.
    """
    deadline, before = time.monotonic() + 20, -1
    while True:
        texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
        counts = [int(re.findall(r"\nvoluntary_ctxt_switches:\t(\d+)", text)[0]) for text in texts]
        if all("\nState:\tS" in text for text in texts) and sum(counts) == before:
            return before
        assert time.monotonic() < deadline, texts
        before = sum(counts)
        time.sleep(0.3)


def carriers(token: str) -> list[int]:
    """Ids of other live processes whose environment or command line holds the token.

    Not of slurmd's own for a job: they end by themselves.
    """
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        texts = ((process / name).read_bytes() for name in ("environ", "cmdline"))
        try:
            if not any(token.encode() in text for text in texts):
                continue
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
            name = (process / "comm").read_text()
        except OSError:
            continue  # ended while it was read
        if state != "Z" and not name.startswith("slurmstepd"):
            found.append(int(process.name))
    return [pid for pid in found if pid != os.getpid()]


def gone(token: str, timeout_s: float = 15) -> bool:
    """Whether every process that carries the token ends in time."""
    deadline = time.monotonic() + timeout_s
    while carriers(token):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
