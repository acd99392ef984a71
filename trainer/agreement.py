"""All ranks stop at the same step, though a signal reaches each at its own time.

Asking at every step would cost a reduction a step. Instead the ranks ask each other at steps that
all of them know beforehand: every answer also carries the number of steps until the next question,
the least that any rank's own pace allows for the lag below. The question travels over CPU tensors,
so that no GPU is waited for.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from trainer.beat import AGREE

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainer.beat import Beat
    from trainer.mesh import Mesh
    from trainer.stop import StopRequest

_LAG_S = 0.5
_MAX_GROWTH = 4
"""The first steps are slow; the gap between questions grows by no more than this."""


class StopAgreement:
    """Asks whether any rank was told to stop."""

    def __init__(
        self,
        mesh: Mesh,
        request: StopRequest,
        beat: Beat,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mesh = mesh
        self._request = request
        self._beat = beat
        self._clock = clock
        self._gap_steps = 1
        self._next_step = 0
        self._asked_s = clock()

    def reached(self, step: int) -> bool:
        """Return whether to stop now; the same on every rank that calls it with `step`."""
        if not self._mesh.is_distributed:
            return self._request.signal_name is not None
        if step < self._next_step:
            return False
        now_s = self._clock()
        pace = self._gap_steps / max(now_s - self._asked_s, 1e-6)
        wish = min(max(1, int(pace * _LAG_S)), _MAX_GROWTH * self._gap_steps)
        self._beat.meet(AGREE)
        told = float(self._request.signal_name is not None)
        stop, minus_gap = self._mesh.max([told, -float(wish)])
        self._gap_steps = int(-minus_gap)
        self._next_step = step + self._gap_steps
        self._asked_s = self._clock()
        return stop > 0
