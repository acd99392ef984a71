"""Processes of this machine: start them with a pipe, look for what they carry, end them."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from rundir import procfs

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Collection, Iterable

_POLL_S = 0.1
_MAX_ROUNDS = 1000
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PIPE_SIZE = 1 << 20
_F_SETPIPE_SZ = 1031


def initial_environment() -> dict[str, str]:
    """Return the environment as this program was started with.

    Python may have added LC_CTYPE to its own, which the user never set.
    """
    pairs = (os.fsdecode(pair).partition("=") for pair in procfs.variables(os.getpid()))
    return {name: value for name, equals, value in pairs if equals}


def open_standard_files() -> None:
    """Have descriptors 0 to 2: a pipe of ours must not get the number of one that was closed."""
    fd = os.open(os.devnull, os.O_RDWR)
    while fd <= 2:  # noqa: PLR2004 -- standard error
        os.set_inheritable(fd, True)
        fd = os.dup(fd)
    os.close(fd)


def processes_with(variable: str) -> list[int]:
    """Find the processes that were started with `NAME=value` in their environment."""
    wanted = os.fsencode(variable)
    return [pid for pid in procfs.others() if wanted in procfs.variables(pid)]


def with_descendants(pids: Iterable[int]) -> list[int]:
    """Return these processes and all below them.

    So those are found, too, that cleared their environment (`env -i`) or wrote a title over it.
    """
    found = {*pids}
    parents = {pid: procfs.parent(pid) for pid in procfs.others()} if found else {}
    newest = found
    while newest:
        newest = {pid for pid, parent in parents.items() if parent in newest} - found
        found |= newest
    return sorted(found)


def send(pids: Iterable[int], signum: int) -> None:
    """Signal processes that may be gone by now."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)


def stop(
    pids: Iterable[int], grace_s: float, pause: Callable[[float], object] = time.sleep
) -> None:
    """End processes: SIGTERM, then SIGKILL for what is left after the grace."""
    pids = list(pids)
    send(pids, signal.SIGTERM)
    deadline_s = time.monotonic() + grace_s
    while True:
        living = [pid for pid in pids if procfs.is_alive(pid)]
        if not living or time.monotonic() >= deadline_s:
            break
        pause(_POLL_S)
    send(living, signal.SIGKILL)


def end_all(
    find: Callable[[], Iterable[int]],
    grace_s: float,
    pause: Callable[[float], object] = time.sleep,
) -> None:
    """End all that `find` finds, as `stop` does, and what they have started meanwhile.

    What starts others faster than they are killed is stopped first: then their number is at the
    user's limit, and no more can come.
    """
    stop(find(), grace_s, pause)
    stopped: set[int] = set()
    for _ in range(_MAX_ROUNDS):
        new = {*find()} - stopped
        if not new:
            break
        send(new, signal.SIGSTOP)
        stopped |= new
    send(stopped, signal.SIGKILL)


def oom_kills() -> tuple[str, int] | None:
    """Read how many processes of this cgroup the kernel has killed for want of memory.

    Returns:
        This process's cgroup and the count; None where the kernel does not say.

    """
    try:
        with open("/proc/self/cgroup") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in lines:
        number, controllers, group = line.split(":", 2)
        if number == "0" and not controllers:
            folder, name = "/sys/fs/cgroup", "memory.events"
        elif controllers == "memory":
            folder, name = "/sys/fs/cgroup/memory", "memory.oom_control"
        else:
            continue
        # Docker shows a container its own group as the root, and names it as the host does.
        for path in (f"{folder}{group}/{name}", f"{folder}/{name}"):
            kills = _count_oom_kills(path)
            if kills is not None:
                return group, kills
    return None


def _count_oom_kills(path: str) -> int | None:
    with suppress(OSError, ValueError), open(path) as file:
        for line in file:
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None


def die_with_parent(signum: int) -> Callable[[], None]:
    """Give what a child calls between fork and exec, to get a signal when this process dies.

    Exec keeps the wish. A parent that died before is noticed. Without ctypes it is left to those
    who sweep after a job.
    """
    prctl, parent = _prctl(), os.getpid()

    def ask() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0)
            if os.getppid() != parent:
                os.kill(os.getpid(), signum)

    return ask


def adopt_orphans() -> None:
    """Become the parent of what is below this process when its own parent dies: see `children`.

    So a daemon stays below, whatever it clears and closes. It must be reaped: see `reap_orphans`.
    """
    prctl = _prctl()
    if prctl is not None:
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans(own: Collection[int]) -> None:
    """Reap the children that have ended, up to the first that is one of these.

    Those their owner reaps.
    """
    with suppress(ChildProcessError):  # there is no child at all
        options = os.WEXITED | os.WNOHANG
        while (ended := os.waitid(os.P_ALL, 0, options | os.WNOWAIT)) and ended.si_pid not in own:
            os.waitpid(ended.si_pid, 0)


def children() -> list[int]:
    """Find the processes whose parent this one is."""
    return [pid for pid in procfs.others() if procfs.parent(pid) == os.getpid()]


def _prctl() -> Callable[..., object] | None:
    try:
        import ctypes  # noqa: PLC0415 -- not everybody needs it, nor has it

        return ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return None


def piped(
    begin: Callable[[int], list[subprocess.Popen[bytes]]],
) -> tuple[list[subprocess.Popen[bytes]], int]:
    """Start processes that write into a pipe; them, and the descriptor to read from."""
    fd, stdout = os.pipe()
    os.set_blocking(fd, False)
    with suppress(OSError):
        fcntl.fcntl(stdout, _F_SETPIPE_SZ, _PIPE_SIZE)
    try:
        return begin(stdout), fd
    except BaseException:
        os.close(fd)
        raise
    finally:
        os.close(stdout)
