"""The machine's own load, from /proc, and what goes over its InfiniBand ports, from sysfs.

psutil reads the same in 29 us a sample instead of 7, and takes 1.8 MB of memory beside the 13.6 of
the whole recorder.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from glob import glob
from typing import TYPE_CHECKING

from monitor.logs.sample import HostSample
from monitor.watchdog.bounded import Bounded
from rundir.paths import MEMORY

if TYPE_CHECKING:
    from collections.abc import Callable

PROC = "/proc"

_KIB_PER_MIB = 1024
_MIB = 2**20
_MIN_WINDOW_S = 0.1  # ticks of 10 ms: a share of less time than this means nothing
_DISK_S = 10.0  # how often to ask a file system that lies perhaps on another machine
_SLOW_S = 0.3  # adapters and disks may hang: the poll goes on without them
_MEMORY = re.compile(rb"MemTotal:\s+(\d+) kB\n(?:.*\n)*?MemAvailable:\s+(\d+) kB")
_IDLE, _IOWAIT, _NUM_TICKS = 3, 4, 8  # in the first line of stat; guests are in user and nice

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
    for path in sorted(glob(f"{root}/*/ports/*/counters/{name}")):
        with suppress(OSError):
            found.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    return found


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


class Host:
    """What the letters `h`, `i`, `d` and `k` show; None where the machine does not report it."""

    def __init__(
        self,
        letters: str = "h",
        folder: str = ".",
        fabric: Callable[[], Fabric] = Fabric,
        proc: str = PROC,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin the first window of the CPU share."""
        self._letters = letters
        self._monotonic = monotonic
        self._slow = _Slow(fabric() if "i" in letters else None, folder if "d" in letters else None)
        self._stat, self._meminfo = _File(f"{proc}/stat"), _File(f"{proc}/meminfo")
        self._began_s = monotonic()
        self._ticks = self._read_ticks()

    def read(self) -> HostSample:
        """Poll once; raises nothing and does not hang."""
        now_s = self._monotonic()
        received, sent, (disk_pct, disk_free_mib) = self._slow.read(now_s)
        return HostSample(
            cpu_pct=self._cpu_pct(now_s) if "h" in self._letters else None,
            mem_used_mib=self._mem_used_mib() if "h" in self._letters else None,
            ib_rx_mb_s=received,
            ib_tx_mb_s=sent,
            shm_pct=room(MEMORY)[0] if "d" in self._letters else None,
            disk_pct=disk_pct,
            disk_free_mib=disk_free_mib,
            mono_s=int(now_s) if "k" in self._letters else None,
        )

    def _cpu_pct(self, now_s: float) -> int | None:
        """Return the share of all cores that neither idled nor waited for disks, as psutil does."""
        if now_s - self._began_s < _MIN_WINDOW_S:
            return None
        before, now = self._ticks, self._read_ticks()
        self._began_s, self._ticks = now_s, now
        if before is None or now is None or now[1] <= before[1]:
            return None
        return round(100 * max(0, now[0] - before[0]) / (now[1] - before[1]))

    def _read_ticks(self) -> tuple[int, int] | None:
        """Read the ticks of all cores since boot: busy, and in all."""
        with suppress(ValueError):
            ticks = [int(word) for word in self._stat.read(256).split(b"\n")[0].split()[1:]]
            if len(ticks) >= _NUM_TICKS:
                in_all = sum(ticks[:_NUM_TICKS])
                return in_all - ticks[_IDLE] - ticks[_IOWAIT], in_all
        return None

    def _mem_used_mib(self) -> int | None:
        found = _MEMORY.match(self._meminfo.read(256))
        return (int(found[1]) - int(found[2])) // _KIB_PER_MIB if found else None


class _File:
    """A file that is read again and again from its beginning; empty if it cannot be."""

    def __init__(self, path: str) -> None:
        self._fd: int | None = None
        with suppress(OSError):
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, num_bytes: int) -> bytes:
        try:
            return b"" if self._fd is None else os.pread(self._fd, num_bytes, 0)
        except OSError:
            return b""


_Room = tuple[int | None, int | None]
_NO_ROOM: _Room = (None, None)
_SlowReadings = tuple[int | None, int | None, _Room]
"""MB/s received and sent over InfiniBand, and the disk's room."""


class _Slow:
    """What may hang: InfiniBand's counters, and the disk; asked in a thread."""

    def __init__(self, fabric: Fabric | None, folder: str | None) -> None:
        self._fabric = fabric if fabric is not None and fabric.has_ports else None
        self._folder = folder
        self._bounded: Bounded | None = None
        self._disk = _NO_ROOM
        self._disk_s = -_DISK_S

    def read(self, now_s: float) -> _SlowReadings:
        """Poll once: InfiniBand received and sent, and the disk, asked now and then."""
        is_due = self._folder is not None and now_s - self._disk_s >= _DISK_S
        if self._fabric is None and not is_due:
            return None, None, self._disk
        if self._bounded is None:
            self._bounded = Bounded("host")
        found = self._bounded.question(lambda: self._poll(is_due=is_due), _SLOW_S)
        if found is None:
            return None, None, _NO_ROOM
        if is_due:
            self._disk_s, self._disk = now_s, found[2]
        return found[0], found[1], self._disk

    def _poll(self, *, is_due: bool) -> _SlowReadings:
        received, sent = self._fabric.read() if self._fabric else (None, None)
        return received, sent, room(self._folder) if is_due and self._folder else _NO_ROOM


def room(path: str) -> _Room:
    """Used share of a file system in %, as df counts it, and MiB free; None: there is none."""
    try:
        disk = os.statvfs(path)
    except OSError:
        return _NO_ROOM
    used = disk.f_blocks - disk.f_bfree
    all_of_it = used + disk.f_bavail
    pct = round(100 * used / all_of_it) if all_of_it else None
    return pct, disk.f_bavail * disk.f_frsize // _MIB
