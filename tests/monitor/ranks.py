"""A rank for tests: writes heartbeats as the trainer does, then hangs in one of many ways.

python ranks.py MODE HEARTBEAT_DIR RANK RUN_DIR
"""

import ctypes
import faulthandler
import mmap
import os
import re
import signal
import struct
import sys
import time
from pathlib import Path

PHASES = ("start", "data", "forward", "backward", "update", "agree", "log", "validate", "save")
BEAT = struct.Struct("<8s7q16x")  # the table in rundir/heartbeat.py
LAST_STEP = 10**5
"""Of a rank that hangs behind the others."""


class Heartbeats:
    """Writes heartbeats to `rank-<r>`."""

    def __init__(self, directory: Path, rank: int) -> None:
        with (directory / f"rank-{rank}").open("w+b") as file:
            file.truncate(BEAT.size)
            self.memory = mmap.mmap(file.fileno(), BEAT.size)
        self.count = 0

    def write(self, phase: str, step: int, collective: int) -> None:
        """Write one."""
        self.count += 1
        now_ns = time.monotonic_ns()
        fields = (os.getpid(), step, now_ns, PHASES.index(phase), self.count, collective, 1)
        self.memory[:] = BEAT.pack(b"DDPBEAT1", *fields)


def hang_in_sleep() -> None:
    """Sleep with the GIL given back."""
    time.sleep(600)


def hang_in_c() -> None:
    """Sleep in C with the GIL held; a signal wakes it only for a moment."""
    libc = ctypes.PyDLL(None)
    while True:
        libc.sleep(600)


def hang_in_regex() -> None:
    """Backtrack for ever, with the GIL held."""
    re.match(r"(a+)+$", "a" * 64 + "b")


def go_on(heartbeats: Heartbeats) -> None:
    """Write heartbeats for ever."""
    step = 10**6
    while True:
        step += 1
        heartbeats.write("forward", step, step)
        time.sleep(0.02)


def main(mode: str, directory: Path, rank: int, run_dir: Path) -> None:
    """Take steps until there is a file `hang`, then do what `mode` says."""
    attempt = os.environ.get("DDP_ATTEMPT", "1")
    path = run_dir / "debug" / f"stack-{attempt}-rank-{rank}.txt"
    if mode != "deaf":
        faulthandler.register(signal.SIGUSR2, file=path.open("a"), all_threads=True)
    heartbeats = Heartbeats(directory, rank)
    print("ready", flush=True)
    step = 0
    while not (directory / "hang").exists():
        step += 1
        heartbeats.write("forward", step, 2 * step)
        time.sleep(0.02)
        heartbeats.write("backward", step, 2 * step + 1)
    if mode == "wait":  # as in a collective that one of the others does not come to
        heartbeats.write("backward", 10**6, 10**6)
        mode = "sleep"
    else:
        heartbeats.write("forward", LAST_STEP, LAST_STEP)
    ways = {"sleep": hang_in_sleep, "c": hang_in_c, "regex": hang_in_regex, "deaf": hang_in_sleep}
    if mode in ways:
        ways[mode]()
    elif mode == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    go_on(heartbeats)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
