"""All ranks stop at the same point, though a signal reaches each at its own time.

Asking at every tick (a step, a batch of a validation) would cost a reduction each. Instead the
ranks ask each other at ticks that all of them know beforehand: every answer also carries the number
of ticks until the next question, the least that any rank's own pace allows for the lag below. The
question travels over CPU tensors, so that no GPU is waited for.
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
"""The first ticks are slow; the gap between questions grows by no more than this."""


class StopAgreement:
    """Asks whether any rank was told to stop."""

    def __init__(
        self,
        mesh: Mesh,
        request: StopRequest,
        beat: Beat,
        clock: Callable[[], float] = time.monotonic,
        *,
        wants_save: Callable[[], bool] = lambda: False,
    ) -> None:
        """Ask `request` whether to stop and, with the same question, `wants_save`."""
        self._mesh = mesh
        self._wants_save = wants_save
        self._request = request
        self._beat = beat
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """Start again with a question at the next tick: what comes has a pace of its own."""
        self._gap = self._num_left = 1
        self._asked_s = self._clock()
        self._save_agreed = False

    @property
    def is_save_due(self) -> bool:
        """Whether the ranks agreed that it is time for a checkpoint, be it the step for it or not.

        It holds until `begin`.
        """
        return self._save_agreed if self._mesh.is_distributed else self._wants_save()

    def reached(self) -> bool:
        """Count a tick; return whether to stop now: the same on all ranks, which all call it."""
        if not self._mesh.is_distributed:
            return self._request.signal_name is not None
        self._num_left -= 1
        return self._num_left == 0 and self._ask()

    def _ask(self) -> bool:
        pace = self._gap / max(self._clock() - self._asked_s, 1e-6)
        wish = min(max(1, int(pace * _LAG_S)), _MAX_GROWTH * self._gap)
        told = float(self._request.signal_name is not None)
        self._beat.meet(AGREE)
        stop, save, minus_gap, minus_remaining_s = self._mesh.max(
            [told, float(self._wants_save()), -float(wish), -self._request.remaining_s]
        )
        self._save_agreed |= save > 0
        if stop:
            self._request.agree(-minus_remaining_s)
        self._gap = self._num_left = int(-minus_gap)
        self._asked_s = self._clock()
        return stop > 0
