"""The machine's own load. The only file that imports psutil."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psutil

from monitor.sample import HostSample

if TYPE_CHECKING:
    from collections.abc import Callable

_MIB = 2**20
_MIN_WINDOW_S = 0.1  # psutil's own rule: a share of less time than this means nothing


class Host:
    """CPU share since the previous look, and memory in use; None where /proc does not tell."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Begin the first window of the CPU share."""
        self._monotonic = monotonic
        self._began_s = monotonic()
        self._measure()

    def read(self) -> HostSample:
        """Look once; raises nothing."""
        return HostSample(cpu_pct=self._cpu_pct(), mem_used_mib=_mem_used_mib())

    def _cpu_pct(self) -> int | None:
        now_s = self._monotonic()
        if now_s - self._began_s < _MIN_WINDOW_S:
            return None
        self._began_s = now_s
        return self._measure()

    @staticmethod
    def _measure() -> int | None:
        try:
            return round(psutil.cpu_percent(interval=None))
        except (OSError, RuntimeError, ValueError, psutil.Error):
            return None


def _mem_used_mib() -> int | None:
    try:
        memory = psutil.virtual_memory()
    except (OSError, RuntimeError, ValueError, psutil.Error):
        return None
    return int(memory.total - memory.available) // _MIB
