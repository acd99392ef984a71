"""The learning rate as a pure function of the step, so that there is no state to save."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.config import Schedule


@dataclass(frozen=True, kw_only=True)
class LearningRate:
    """Linear warm-up to the peak, then one of four ways down, or none.

    constant: it stays. cosine: half a cosine down to `lowest`. linear: a straight line down to it.
    wsd (warm-up, stable, decay): it stays, and goes down to it in a straight line over the last
    `decay_fraction` of all steps; until then nothing depends on how many steps there will be.

    The first step after warm-up is taken at the peak, the last one of all a step above `lowest`.
    """

    peak: float
    kind: Schedule
    warmup_steps: int
    total_steps: int
    decay_fraction: float = 0.2
    lowest: float = 0.0

    def at(self, step: int) -> float:
        """Return the rate with which step `step`, counted from 0, is taken."""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        if self.kind == "constant":
            return self.peak
        first = self._first_step_down()
        passed = (step - first) / max(1, self.total_steps - first)
        if self.kind == "cosine":
            left = 0.5 * (1 + math.cos(math.pi * passed))
        else:
            left = 1 - max(0.0, passed)
        return self.lowest + (self.peak - self.lowest) * left

    def _first_step_down(self) -> int:
        if self.kind != "wsd":
            return self.warmup_steps
        return max(
            self.warmup_steps, self.total_steps - round(self.decay_fraction * self.total_steps)
        )
