"""All ranks stop at the same point, though a signal reaches each at its own time.

Asking at every tick (a step, a batch of a validation) would cost a reduction each. Instead the
ranks ask each other at ticks that all of them know beforehand: every answer also carries the number
of ticks until the next question, the least that any rank's own pace allows for the lag below. The
question travels over CPU tensors, so that no GPU is waited for; and where ticks are short, its
answer is taken at the next one, so that no rank waits for another.
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

_LAG_S = 1.0
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
        self._answer: Callable[[], list[float]] | None = None
        """Of the question that is under way."""
        self.begin()

    def begin(self) -> None:
        """Start again with a question at the next tick: what comes has a pace of its own."""
        if self._answer is not None:
            self._wait_for(self._answer)  # and not look at it: the next question is the same one
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
        if self._answer is not None:
            return self._hear(self._answer)
        self._num_left -= 1
        if self._num_left > 0:
            return False
        self._answer = self._ask()
        return self._gap == 1 and self._hear(self._answer)

    def _ask(self) -> Callable[[], list[float]]:
        pace = self._gap / max(self._clock() - self._asked_s, 1e-6)
        wish = min(max(1, int(pace * _LAG_S)), _MAX_GROWTH * self._gap)
        told = float(self._request.signal_name is not None)
        return self._mesh.max_later(
            [told, float(self._wants_save()), -float(wish), -self._request.remaining_s]
        )

    def _hear(self, answer: Callable[[], list[float]]) -> bool:
        stop, save, minus_gap, minus_remaining_s = self._wait_for(answer)
        self._save_agreed |= save > 0
        if stop:
            self._request.agree(-minus_remaining_s)
        self._gap = self._num_left = int(-minus_gap)
        self._asked_s = self._clock()
        return stop > 0

    def _wait_for(self, answer: Callable[[], list[float]]) -> list[float]:
        self._beat.meet(AGREE)
        self._answer = None
        return answer()
