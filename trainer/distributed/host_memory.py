"""Host memory: how much more this process can take, and how malloc keeps what was freed."""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ROOTS = {"": Path("/sys/fs/cgroup"), "memory": Path("/sys/fs/cgroup/memory")}
"""By the controllers of a line of /proc/self/cgroup: version 2, and version 1."""
_NAMES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def num_free_bytes(
    cgroup_file: Path = Path("/proc/self/cgroup"), roots: dict[str, Path] = _ROOTS
) -> int:
    """Return what the host has left, or the tightest of the cgroups that this process is in."""
    import psutil  # noqa: PLC0415 -- seldom needed

    available = int(psutil.virtual_memory().available)
    return min([available, *_left_in_cgroups(cgroup_file, roots)])


def _left_in_cgroups(cgroup_file: Path, roots: dict[str, Path]) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for line in cgroup_file.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in roots:
                folder = roots[controllers] / path.lstrip("/")
                for group in (folder, *folder.parents):
                    with contextlib.suppress(OSError, ValueError):  # no such limit, or "max"
                        yield _left_in(group, *_NAMES[controllers])


def _left_in(group: Path, limit: str, usage: str, reclaimable: str) -> int:
    """Return what the limit of a cgroup leaves. Unused pages of files can go."""
    num_bytes = int((group / limit).read_text()) - int((group / usage).read_text())
    counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return num_bytes + int(counts[reclaimable])


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_NEVER = -1
_LARGEST_BYTES = 32 << 20
"""Larger ones are always the system's: glibc takes no higher threshold."""


def keep_freed_memory(env: Mapping[str, str]) -> None:
    """Let malloc keep tensors of up to 32 MiB when they are freed, and give none of it back.

    Each step frees what the next one allocates again. glibc hands freed memory back to the system
    when enough of it lies at the heap's end, and the system gives it out page by page, each zeroed
    and faulted in: some 4 % of the CPU time of a small model's step on a CPU. When glibc does so
    depends on the sizes of whatever was freed before, and so on chance.

    Nothing is done where `env` sets malloc up itself, or where the C library has no such settings.
    """
    if any(name.startswith("MALLOC_") for name in env) or "malloc" in env.get("GLIBC_TUNABLES", ""):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _NEVER)
