"""The ranks that outlive their launcher: found by the token they carry, and ended."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rundir import procfs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
    return [pid for pid in procfs.others() if _carries(pid, wanted, node)]


def find_ranks(launch_id: str, node: str | None) -> dict[int, list[int]]:
    """Find the processes of each rank of this launch on this node: its command and descendants.

    They carry `DDP_RANK_ID`, the token and the rank; launchers and torchrun itself do not.
    """
    prefix = f"DDP_RANK_ID={launch_id}/".encode()
    ranks: dict[int, list[int]] = {}
    for pid in find(launch_id, node):
        for variable in _variables(pid):
            number = variable.removeprefix(prefix)
            if number != variable and number.isdigit():
                ranks.setdefault(int(number), []).append(pid)
    return ranks


def end(launch_id: str, node: str | None, term_s: float = _TERM_S) -> Ended:
    """Ask every such process to end, and kill what is left after `term_s` seconds."""
    return _end(lambda: find(launch_id, node), term_s)


def end_ranks(launch_id: str, node: str | None, term_s: float = _TERM_S) -> Ended:
    """End the commands of all ranks, and leave it to their launchers to report it."""
    return _end(lambda: [p for pids in find_ranks(launch_id, node).values() for p in pids], term_s)


def end_known(known: Sequence[procfs.Identity], term_s: float, kill_s: float) -> Ended:
    """End these processes without reading anybody's memory, which may hang."""
    return _end(
        lambda: [w.pid for w in known if procfs.identity(w.pid) == w and procfs.is_alive(w.pid)],
        term_s,
        kill_s,
    )


def _end(find_living: Callable[[], list[int]], term_s: float, kill_s: float = _KILL_S) -> Ended:
    asked: set[int] = set()
    _drive(find_living, signal.SIGTERM, asked, term_s)
    killed: set[int] = set()
    _drive(find_living, signal.SIGKILL, killed, kill_s)
    return Ended(tuple(sorted(asked | killed)), tuple(sorted(killed)))


def _drive(
    find_living: Callable[[], list[int]],
    signum: signal.Signals,
    signalled: set[int],
    limit_s: float,
) -> None:
    """Signal each process once, those that appear meanwhile too, until none is left."""
    deadline_s = time.monotonic() + limit_s
    while True:
        living = find_living()
        for pid in living:
            if pid not in signalled:
                signalled.add(pid)
                send(pid, signum)
        if not living or time.monotonic() >= deadline_s:
            return
        time.sleep(_POLL_S)


def send(pid: int, signum: signal.Signals) -> None:
    """Signal a process that may be gone by now, and wake it if it is stopped."""
    try:
        os.kill(pid, signum)
        if signum == signal.SIGTERM:
            os.kill(pid, signal.SIGCONT)  # a stopped process receives nothing until it goes on
    except (ProcessLookupError, PermissionError):
        pass  # it ended by itself meanwhile


def _carries(pid: int, wanted: set[bytes], node: str | None) -> bool:
    variables = _variables(pid)
    if not variables or not wanted <= variables:
        return False
    return node is not None or any(v.startswith(b"LOCAL_RANK=") for v in variables)


def _variables(pid: int) -> set[bytes]:
    """Read what a process of this user was started with; nothing of anybody else's."""
    with suppress(OSError):  # it has ended
        if os.stat(f"/proc/{pid}").st_uid == os.geteuid():
            return {*procfs.variables(pid)}
    return set()
