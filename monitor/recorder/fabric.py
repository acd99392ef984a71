"""What goes over a node's InfiniBand ports, from the counters in sysfs."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = "/sys/class/infiniband"

_BYTES_PER_WORD = 4  # the counters count words of 32 bits, whatever the link's speed
_FULL = 2**32 - 1  # old adapters stop counting here
_MB = 10**6
_NAMES = ("port_rcv_data", "port_xmit_data")


class Fabric:
    """MB/s received and sent over all ports since the previous poll.

    A port counts if it could be read in both polls.
    """

    def __init__(self, root: str = ROOT, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Find the ports; files are kept open, for a poll is to cost little."""
        self._monotonic = monotonic
        self._files = [_open_all(root, name) for name in _NAMES]
        self._before: tuple[float, list[dict[int, int]]] | None = None

    @property
    def has_ports(self) -> bool:
        """Whether there is anything to read."""
        return any(self._files)

    def read(self) -> tuple[int | None, int | None]:
        """Poll once; raises nothing."""
        if not self.has_ports:
            return None, None
        now_s, counts = self._monotonic(), [_read_all(files) for files in self._files]
        before, self._before = self._before, (now_s, counts)
        if before is None or now_s <= before[0]:
            return None, None
        received, sent = (
            _rate(old, new, now_s - before[0]) for old, new in zip(before[1], counts, strict=True)
        )
        return received, sent


def _open_all(root: str, name: str) -> list[int]:
    """Open a counter of every port, as file descriptors."""
    found = []
    for adapter in _list(root):
        for port in _list(f"{root}/{adapter}/ports"):
            with suppress(OSError):
                path = f"{root}/{adapter}/ports/{port}/counters/{name}"
                found.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    return found


def _list(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))  # noqa: PTH208 - pathlib costs start time
    except OSError:
        return []


def _read_all(files: list[int]) -> dict[int, int]:
    """Read the words counted, by descriptor."""
    counts = {}
    for fd in files:
        with suppress(OSError, ValueError):
            count = int(os.pread(fd, 32, 0))
            if count != _FULL:
                counts[fd] = count
    return counts


def _rate(old: dict[int, int], new: dict[int, int], time_s: float) -> int | None:
    """Sum the growth of all counters that did not begin anew."""
    grown = [new[fd] - old[fd] for fd in new if fd in old and new[fd] >= old[fd]]
    return int(sum(grown) * _BYTES_PER_WORD / _MB / time_s) if grown else None
