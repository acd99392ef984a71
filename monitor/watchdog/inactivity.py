"""A command of the user's own has no heartbeat: whether it does anything, as seen from outside.

| its log | its GPU | its processes | it is |
| --- | --- | --- | --- |
| grows | any | any | active |
| does not | works | any | active |
| does not | waits | any | inactive: a waiting collective keeps a core busy, too |
| does not | idle or none | use 1 % of a core or more | active |
| does not | idle or none | use less | inactive |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from monitor.logs import constants

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from monitor.logs.sample import GpuSample

_SPINNING_PCT = 90  # a collective's kernel spins: the driver calls that busy
_MAX_TRAFFIC_PCT = 1  # it reads one flag again and again, out of a cache
_MAX_POWER = 0.45  # of the limit; what computes at that utilisation draws more
_MIN_CORE_SHARE = 0.01
_RECHECK_S = 5.0


def gpu_pattern(gpu: GpuSample, power_limit_w: float | None) -> str | None:
    """Classify a GPU: `waiting` in a collective, `working`, `idle`; None without a reading.

    Args:
        gpu: one poll at it.
        power_limit_w: what it may draw, else the most that it was seen to draw.

    """
    if gpu.sm_pct is None:
        return None
    if gpu.sm_pct <= constants.BUSY_PCT:
        return "idle"
    traffic = [pct for pct in (gpu.mem_pct, gpu.dram_active_pct) if pct is not None]
    is_still = bool(traffic) and max(traffic) <= _MAX_TRAFFIC_PCT
    is_cool = (
        gpu.power_w is not None
        and power_limit_w is not None
        and gpu.power_w <= _MAX_POWER * power_limit_w
    )
    return "waiting" if gpu.sm_pct >= _SPINNING_PCT and is_still and is_cool else "working"


@dataclass
class Inactivity:
    """How long one rank has given no sign of life.

    Args:
        times: gives the processor time of each of its processes, in seconds by process; None if
            that could not be found out in time.

    """

    times: Callable[[], Mapping[int, float] | None]
    _log_state: Hashable = None
    _pattern: str | None = None
    _since_s: float | None = None
    _times: Mapping[int, float] | None = None
    _quiet_since_s: float = 0.0
    _checked_s: float = 0.0

    def update(
        self, now_s: float, log_state: Hashable, pattern: str | None, limit_s: float
    ) -> float:
        """Take one poll; the seconds since the last sign of life, as far as is known.

        Args:
            now_s: a clock that leaves out time without a watcher.
            log_state: changes when the log grows; None while that is unknown.
            pattern: what its GPU shows.
            limit_s: after this long the processor time is asked, which costs more.

        """
        is_alive = log_state is None or log_state != self._log_state or pattern == "working"
        begins_to_wait = pattern == "waiting" != self._pattern
        self._log_state, self._pattern = log_state, pattern
        if is_alive or self._since_s is None:
            self._since_s, self._times = now_s, None
            return 0.0
        if pattern == "waiting":
            if begins_to_wait and self._times is not None:
                self._check_times(now_s)  # until now it may have computed
            return now_s - self._since_s
        if self._times is None:
            self._times = self.times() or {}
            self._quiet_since_s = self._checked_s = now_s
        elif now_s - self._checked_s >= self._pause_s(limit_s):
            is_known = self._check_times(now_s)
            if not is_known and now_s - self._checked_s < 2 * limit_s:
                return self._checked_s - self._quiet_since_s  # a busy node: ask again
        return now_s - self._quiet_since_s

    def _pause_s(self, limit_s: float) -> float:
        """Give how long to wait for the next check: the first one decides, the rest confirm it."""
        is_first = self._checked_s == self._quiet_since_s
        return limit_s if is_first else max(_RECHECK_S, limit_s / 10)

    def _check_times(self, now_s: float) -> bool:
        """Start over if the processes have worked since the last check; False: it is unknown.

        What stays unknown for long is no sign of life: /proc of a process that hangs in the kernel
        may hang, too.
        """
        now, before = self.times(), self._times or {}
        if now is None:
            return False
        used_s = sum(s - before.get(pid, 0.0) for pid, s in now.items())
        if used_s >= _MIN_CORE_SHARE * (now_s - self._checked_s):
            self._since_s = self._quiet_since_s = now_s
        self._times, self._checked_s = now, now_s
        return True
