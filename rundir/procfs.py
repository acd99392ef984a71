"""What /proc shows of processes: their state, their time, their environment, their handlers.

`state`, `identity`, `parent`, `cpu_s` and `catches` never wait for that process. What reads its
memory (`variables`, `environment`, `command_line`) may: ask those in a thread with a bound.

psutil knows neither wchan nor which signals are caught, takes twice as long for a state (30 us) and
six times for all environments, and costs the recorder 1.8 MB more memory.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Places after the name in /proc/<pid>/stat.
_STATE, _PARENT, _UTIME, _STIME, _START = 0, 1, 11, 12, 19


class Identity(NamedTuple):
    """A process beyond the reuse of its number: when it started, in ticks since boot."""

    pid: int
    start_ticks: int


def num_cpus(cgroups: str = "/sys/fs/cgroup") -> int:
    """Count the CPUs that this process may use: those it may run on, or as many as its quota is.

    A container's (docker run --cpus), for which more threads are slower than fewer.
    """
    return max(1, int(min([len(os.sched_getaffinity(0)), *_quotas(cgroups)])))


def _quotas(cgroups: str) -> Iterator[float]:
    """Give the quota of each cgroup that this process is in, by version 2 or 1."""
    for line in _text("/proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top, names = cgroups, ["cpu.max"]
        if controllers:
            top, names = f"{cgroups}/cpu", ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        while group:
            with suppress(ValueError):  # there is none, or it is "max"
                quota, period = " ".join(_text(f"{top}{group}/{name}") for name in names).split()
                if int(quota) > 0:
                    yield int(quota) / int(period)
            # The last one is a container's own, in which the others are not to be seen.
            group = "" if group == "/" else os.path.dirname(group)


def others() -> list[int]:
    """List all processes but this one."""
    own = os.getpid()
    return [int(n) for n in os.listdir("/proc") if n.isdecimal() and int(n) != own]


def is_alive(pid: int) -> bool:
    """Whether a process runs. A zombie has ended: it only waits for its parent."""
    return state(pid) is not None


def state(pid: int) -> str | None:
    """Return the state as /proc does (R, S, D, T, t); None once it has ended, as a zombie has."""
    fields = _stat(pid)
    if fields is None or fields[_STATE] in ("Z", "X"):
        return None
    return fields[_STATE]


def identity(pid: int) -> Identity | None:
    """Return who this process is; None if there is none."""
    fields = _stat(pid)
    return None if fields is None else Identity(pid, int(fields[_START]))


def parent(pid: int) -> int | None:
    """Return the process above it; None if there is no such process, or none above it."""
    fields = _stat(pid)
    return (int(fields[_PARENT]) or None) if fields is not None else None


def cpu_s(pid: int) -> float | None:
    """Processor time used so far, in seconds; None if there is no such process."""
    fields = _stat(pid)
    if fields is None:
        return None
    return (int(fields[_UTIME]) + int(fields[_STIME])) / _TICKS_PER_S


def catches(pid: int, signum: int) -> bool:
    """Whether the process has a handler of its own for the signal."""
    mask = _read(f"/proc/{pid}/status").partition(b"\nSigCgt:")[2].split(None, 1)[:1]
    return bool(mask) and bool(int(mask[0], 16) >> (signum - 1) & 1)


def variables(pid: int) -> list[bytes]:
    """Return each `NAME=value` that a program was started with; [] where it may not be read."""
    return _read(f"/proc/{pid}/environ").split(b"\0")[:-1]


def environment(pid: int) -> dict[str, str]:
    """Return the variables that a program was started with; {} where it may not be read."""
    pairs = (pair.decode(errors="replace").partition("=") for pair in variables(pid))
    return {name: value for name, found, value in pairs if found}


def command_line(pid: int) -> list[str]:
    """Return the words of the command; [] where it may not be read."""
    return _text(f"/proc/{pid}/cmdline").split("\0")[:-1]


def is_python(pid: int) -> bool:
    """Whether a Python interpreter runs there."""
    try:
        program = os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return False
    return program.rpartition("/")[2].startswith("python")


def describe(pid: int) -> str:
    """Write down what /proc shows of a process and its threads, for a person to read."""
    parts = [_text(f"/proc/{pid}/status").strip()]
    for thread in sorted(_threads(pid)):
        where = f"/proc/{pid}/task/{thread}"
        parts.append(f"thread {thread} {_text(f'{where}/comm').strip()}")
        parts += [
            f"  {name}: {' | '.join(text.split(chr(10)))}"
            for name in ("wchan", "syscall", "stack")
            if (text := _text(f"{where}/{name}").strip())
        ]
    return "\n".join(parts) + "\n"


def waits_in(pid: int) -> str | None:
    """Return the kernel function in which the first thread sleeps; None if it does not."""
    name = _text(f"/proc/{pid}/wchan").strip()
    return None if name in ("", "0") else name


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _stat(pid: int) -> list[str] | None:
    """Read the fields after the name, which itself may hold anything."""
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields if len(fields) > _START else None


def _text(path: str) -> str:
    return _read(path).decode(errors="replace")


def _read(path: str) -> bytes:
    with suppress(OSError), open(path, "rb", buffering=0) as file:
        return file.readall()
    return b""  # it ended meanwhile, or is not ours to read
