"""Processes that have imported the trainer and wait to become ranks."""

from __future__ import annotations

import os
from pathlib import Path

MODULE = b"trainer.standby"


def processes(directory: Path, word: bytes = b"") -> set[int]:
    """What runs for a run below this directory, and has a word in its command line."""
    token, found = f"{directory}/".encode(), set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            if token in (process / "environ").read_bytes() and word in command:
                found.add(int(process.name))
        except OSError:
            continue
    return found


def waiting(directory: Path, ranks: set[int]) -> set[int]:
    """Those that have imported torch, in a thread that has ended, and are no ranks yet."""
    return {pid for pid in processes(directory, MODULE) - ranks if _has_imported(pid)}


def maps(pid: int) -> str:
    """The files that a process has mapped; nothing if it has ended."""
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return ""


def _has_imported(pid: int) -> bool:
    try:
        priorities = {_nice(task) for task in Path(f"/proc/{pid}/task").iterdir()}
    except OSError:
        return False
    return "libtorch_cpu" in maps(pid) and priorities == {os.getpriority(os.PRIO_PROCESS, 0)}


def _nice(task: Path) -> int:
    return int((task / "stat").read_text().rpartition(")")[2].split()[16])
