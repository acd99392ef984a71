"""The ranks that outlive their launcher: found by the token they carry, and ended."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

_TERM_S = 2.0  # how long a process may take to end by itself
_KILL_S = 3.0  # how long the kernel may take to bury what was killed
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Ended:
    """Process ids that were asked to end, and those among them that had to be killed."""

    asked: tuple[int, ...]
    killed: tuple[int, ...]


def find(launch_id: str, node: str | None) -> list[int]:
    """Find processes of this user that were started as, or by, a rank of this launch on this node.

    A rank is known by its environment as it was when the program started: `DDP_LAUNCH_ID` must be
    the token, and `DDP_NODE` must be `node` (with no node given, `LOCAL_RANK` must be there). The
    batch script and `srun` carry the token alone and are left to do their own cleaning up.
    """
    wanted = {f"DDP_LAUNCH_ID={launch_id}".encode()}
    if node is not None:
        wanted.add(f"DDP_NODE={node}".encode())
    pids = (
        int(name)
        for name in os.listdir("/proc")  # noqa: PTH208 - pathlib costs start time
        if name.isdigit()
    )
    return [pid for pid in pids if pid != os.getpid() and _carries(pid, wanted, node)]


def end(launch_id: str, node: str | None, term_s: float = _TERM_S) -> Ended:
    """Ask every such process to end, and kill what is left after `term_s` seconds."""
    asked: set[int] = set()
    _drive(launch_id, node, signal.SIGTERM, asked, term_s)
    killed: set[int] = set()
    _drive(launch_id, node, signal.SIGKILL, killed, _KILL_S)
    return Ended(tuple(sorted(asked | killed)), tuple(sorted(killed)))


def _drive(
    launch_id: str, node: str | None, signum: signal.Signals, told: set[int], limit_s: float
) -> None:
    """Signal each process once, those that appear meanwhile too, until none is left."""
    deadline_s = time.monotonic() + limit_s
    while True:
        living = find(launch_id, node)
        for pid in living:
            if pid not in told:
                told.add(pid)
                _send(pid, signum)
        if not living or time.monotonic() >= deadline_s:
            return
        time.sleep(_POLL_S)


def _send(pid: int, signum: signal.Signals) -> None:
    try:
        os.kill(pid, signum)
        if signum == signal.SIGTERM:
            os.kill(pid, signal.SIGCONT)  # a stopped process hears nothing until it goes on
    except (ProcessLookupError, PermissionError):
        pass  # it ended by itself meanwhile


def _carries(pid: int, wanted: set[bytes], node: str | None) -> bool:
    directory = f"/proc/{pid}"
    try:
        if os.stat(directory).st_uid != os.geteuid():  # noqa: PTH116 - pathlib costs start time
            return False
        with open(f"{directory}/environ", "rb") as file:  # noqa: PTH123
            variables = set(file.read().split(b"\0"))
    except OSError:
        return False  # ended meanwhile, or not ours to look into
    if not wanted <= variables:
        return False
    return node is not None or any(v.startswith(b"LOCAL_RANK=") for v in variables)
