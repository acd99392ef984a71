"""Where this attempt's time went, in seconds that add up to all of it."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Literal

from rundir import procfs

if TYPE_CHECKING:
    from collections.abc import Iterator


class Ledger:
    """Start, waiting for data, checkpoints and validation are measured; the rest is computing.

    All that was before the end of the attempt's first step is its start, whatever it was.
    """

    def __init__(self) -> None:
        self._before_s = _process_age_s()
        self._began_s = time.perf_counter()
        self._at_start: dict[str, float] | None = None
        self.data_wait_s = 0.0
        self.checkpoint_s = 0.0
        self.validation_s = 0.0

    def started(self, wait_s: float) -> None:
        """The first step is done: from here on time is divided. See `time_spent` for `wait_s`."""
        self._at_start = self._sums(wait_s)

    @property
    def paused_s(self) -> float:
        """Seconds in which training stood still."""
        return self.checkpoint_s + self.validation_s

    @contextlib.contextmanager
    def counting(self, name: Literal["checkpoint_s", "validation_s"]) -> Iterator[None]:
        """Count what happens in here as that."""
        began_s = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, name, getattr(self, name) + time.perf_counter() - began_s)

    def time_spent(self, wait_s: float) -> dict[str, float]:
        """Return the sums since the process began, with `wait_s` that is not in data_wait_s yet."""
        now = self._sums(wait_s)
        begin = self._at_start or now
        parts = {name: max(0.0, now[name] - begin[name]) for name in now}
        parts["start_s"] = begin["start_s"]
        parts["compute_s"] = max(0.0, now["start_s"] - sum(parts.values()))
        return {name: round(seconds, 3) for name, seconds in parts.items()}

    def _sums(self, wait_s: float) -> dict[str, float]:
        return {
            "start_s": self._before_s + time.perf_counter() - self._began_s,
            "data_wait_s": self.data_wait_s + wait_s,
            "checkpoint_s": self.checkpoint_s,
            "validation_s": self.validation_s,
        }


def _process_age_s() -> float:
    """Seconds since the kernel started this process; 0 where that is not known."""
    own = procfs.identity(os.getpid())
    if own is None:
        return 0.0
    began_s = own.start_ticks / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began_s)
