"""Inactivity timeouts: how old a rank's last heartbeat may be before it counts as hung."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rundir.heartbeat import Heartbeat

FIRST_STEP_S = 1800.0
"""Start-up, a compiler and the first batches take their time."""
_LEAST_S = 300.0
_GAPS = 20
_SLOW_FACTOR = 10  # storage is slow at times, and waits for others
_LEAST_START_S = 120.0  # whatever was given: it is not meant for `import torch`
_SLOW = ("save", "load")
_NORMAL = ("data", "forward", "backward", "update", "agree", "log", "validate", "end")


@dataclass
class Timeouts:
    """The limits, given or learned from the heartbeats of this node."""

    given_s: float | None = None
    longest_gap_s: float = 0.0
    """Between two heartbeats in normal phases, of any rank of this node."""

    def limit_s(self, phase: str, *, has_stepped: bool) -> float:
        """Give the timeout, in seconds, in this phase before or after the first step."""
        if self.given_s is None:
            usual_s, first_s = max(_LEAST_S, _GAPS * self.longest_gap_s), FIRST_STEP_S
        else:
            usual_s = self.given_s
            first_s = max(_LEAST_START_S, _SLOW_FACTOR * self.given_s)
        if phase in _SLOW:
            return max(_SLOW_FACTOR * usual_s, 0.0 if has_stepped else first_s)
        return usual_s if has_stepped else first_s

    def command_limit_s(self) -> float:
        """Give the timeout of a command that has no heartbeat."""
        return FIRST_STEP_S if self.given_s is None else self.given_s

    def poll_s(self) -> float:
        """Give how often to poll: often enough to be right within a tenth of the limit."""
        return 5.0 if self.given_s is None else min(max(self.given_s / 10, 0.25), 5.0)


@dataclass
class BeatAge:
    """How old the last heartbeat of one rank is, without the time in which nothing watched.

    A job that is suspended (`scontrol suspend`), and its watcher with it, has not hung meanwhile.
    """

    timeouts: Timeouts
    has_stepped: bool = False
    _last: Heartbeat | None = None
    _age_s: float = 0.0
    _skipped_s: float = 0.0
    """How much was skipped when the last heartbeat was given."""
    _polled_s: float = 0.0
    """How much was skipped at the last poll."""

    def update(self, heartbeat: Heartbeat, now_s: float, skipped_s: float) -> float:
        """Take one poll; the age in seconds.

        Args:
            heartbeat: the rank's newest.
            now_s: CLOCK_MONOTONIC.
            skipped_s: how much of that time so far nothing watched.

        """
        last = self._last
        if last is None or (heartbeat.num_heartbeats, heartbeat.time_ns) != (
            last.num_heartbeats,
            last.time_ns,
        ):
            self._learn(last, heartbeat)
            # It may have come after the last poll, and before the job was suspended.
            skipped_after_s = min(skipped_s - self._polled_s, now_s - heartbeat.time_ns / 1e9)
            self._last, self._skipped_s = heartbeat, skipped_s - max(0.0, skipped_after_s)
        self._polled_s = skipped_s
        age_s = now_s - heartbeat.time_ns / 1e9 - (skipped_s - self._skipped_s)
        self._age_s = max(0.0, age_s)
        return self._age_s

    def limit_s(self) -> float:
        """Give the limit of where the rank is now."""
        phase = self._last.phase if self._last else "start"
        return self.timeouts.limit_s(phase, has_stepped=self.has_stepped)

    def _learn(self, last: Heartbeat | None, heartbeat: Heartbeat) -> None:
        """A gap counts once it is over. A resumed run's first step is not its number 1."""
        if last is not None and self.has_stepped and last.phase in _NORMAL:
            self.timeouts.longest_gap_s = max(self.timeouts.longest_gap_s, self._age_s)
        self.has_stepped |= (
            heartbeat.first_step is not None and heartbeat.step > heartbeat.first_step
        )
