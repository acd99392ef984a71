"""The learning rate as a pure function of the step, so that there is no state to save."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.config import Schedule


@dataclass(frozen=True, kw_only=True)
class LearningRate:
    """Linear warm-up, then constant or half a cosine down to zero."""

    peak: float
    kind: Schedule
    warmup_steps: int
    total_steps: int

    def at(self, step: int) -> float:
        """Return the rate with which step `step`, counted from 0, is taken."""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        if self.kind == "constant":
            return self.peak
        span = max(1, self.total_steps - self.warmup_steps)
        return self.peak * 0.5 * (1 + math.cos(math.pi * (step - self.warmup_steps) / span))
