"""Signals that ask the run to stop: a flag is set, the loop acts at a step's end.

A thread receives each signal at once, whatever the main thread is doing: so the time
that is left is counted from the signal's arrival, and when it is up the process ends, even if the
main thread waits for a rank or a disk that will not answer.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from rundir import codes
from trainer.telemetry.heartbeat import AGREE
from trainer.text import flush_what_can_be, warn

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainer.distributed.mesh import Mesh
    from trainer.telemetry.heartbeat import Heartbeat

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_SAME_REQUEST_S = 2.0
"""Slurm and the launcher may both deliver one request; within this time it counts as one."""
_MARGIN_S = 2.0
_MARGIN_PART = 0.2
"""Of the time left, kept for the shutdown report: so many seconds, at most this part of it."""

_MAX_WAIT_S = 86_400.0
"""A poll takes no time of weeks; it only looks again."""


class StopRequest:
    """The flag, and how long the process may still live. `signal_name` is None until asked."""

    def __init__(self) -> None:
        self.signal_name: str | None = None
        self._received_s = 0.0
        self._received_epoch_s = 0.0
        self._grace_s = math.inf
        self._end_epoch_s: float | None = None
        self._limit_s = math.inf
        self._is_over = False
        self._report_shutdown: Callable[[float], None] = report_too_early
        self._wake_up: int | None = None
        self._ending = threading.Lock()

    def install(self) -> None:
        """Take SIGTERM, SIGINT and SIGUSR1; only the main thread may."""
        for number in _SIGNALS:
            signal.signal(number, self._handle)
        reader, self._wake_up = os.pipe()
        os.set_blocking(self._wake_up, False)
        signal.set_wakeup_fd(self._wake_up, warn_on_full_buffer=False)
        # A loader's worker must not wake us with its own signals.
        os.register_at_fork(after_in_child=partial(signal.set_wakeup_fd, -1))
        threading.Thread(target=self._listen, args=(reader,), daemon=True, name="signals").start()

    def allow(
        self,
        *,
        grace_s: float | None,
        end_epoch_s: float | None,
        report_shutdown: Callable[[float], None],
    ) -> None:
        """Set how long the process may live: after TERM and INT, and, after USR1, until when.

        `report_shutdown` is called, from any thread, with the seconds left when they are up; then
        the process ends with 75.
        """
        self._grace_s = math.inf if grace_s is None else grace_s
        self._end_epoch_s = end_epoch_s
        self._report_shutdown = report_shutdown
        self._wake()

    def limit(self, remaining_s: float) -> None:
        """Take over what the rank with the least time has left; infinite if it is not known."""
        self._limit_s = time.monotonic() + remaining_s
        self._wake()

    def settle(self) -> None:
        """There is nothing left to save: from now on no time is up."""
        self._is_over = True
        self._wake()

    @property
    def remaining_s(self) -> float:
        """Seconds to save and to end in; infinite without a request or a limit."""
        return self._deadline_s() - time.monotonic()

    def give_up(self) -> None:
        """End with 75, with no checkpoint of this step: it could not be written in time."""
        self._ending.acquire()  # for ever, for the second of two threads
        with contextlib.suppress(Exception):  # a report that fails must not delay the end
            self._report_shutdown(max(0.0, self.remaining_s))
        flush_what_can_be()
        os._exit(codes.STOPPED)

    def _deadline_s(self) -> float:
        """On the monotonic clock."""
        if self.signal_name is None:
            return self._limit_s
        if self.signal_name == "USR1":
            left_s = math.inf
            if self._end_epoch_s is not None and self._end_epoch_s > self._received_epoch_s:
                left_s = self._end_epoch_s - self._received_epoch_s
            # Asked before the end, and yet it is past: this node's clock is wrong, others' count.
        else:
            left_s = self._grace_s
        if left_s < math.inf:
            left_s -= min(_MARGIN_S, _MARGIN_PART * left_s)
        return min(self._limit_s, self._received_s + left_s)

    def _handle(self, number: int, _frame: object) -> None:
        if self.signal_name is None:
            self._received_s, self._received_epoch_s = time.monotonic(), time.time()
            self.signal_name = signal.Signals(number).name.removeprefix("SIG")

    def _listen(self, reader: int) -> None:
        poll = select.poll()  # select takes no descriptor above 1023
        poll.register(reader, select.POLLIN)
        while True:
            left_s = math.inf if self._is_over else self.remaining_s
            if left_s <= 0:
                self.give_up()
            timeout_ms = None if left_s == math.inf else math.ceil(1000 * min(left_s, _MAX_WAIT_S))
            if not poll.poll(timeout_ms):
                continue
            for number in os.read(reader, 64):
                if number not in _SIGNALS:
                    continue  # woken to read the clock again, or another signal
                self._handle(number, None)
                if time.monotonic() - self._received_s > _SAME_REQUEST_S:
                    os._exit(128 + number)  # asked twice: no checkpoint, no report

    def _wake(self) -> None:
        if self._wake_up is not None:
            with contextlib.suppress(BlockingIOError):
                os.write(self._wake_up, b"\0")


def report_too_early(_left_s: float) -> None:
    """Report a shutdown before there was anything to save."""
    warn("asked to stop before training began: there is nothing to save")


_LAG_S = 1.0
_MAX_GROWTH = 4
"""The first ticks are slow; the gap between questions grows by no more than this."""


class StopConsensus:
    """Asks whether any rank was asked to stop, so that all stop at the same point.

    Asking at every tick (a step, a batch of a validation) would cost a reduction each. Instead the
    ranks ask at ticks that all of them know beforehand: every answer also carries the number of
    ticks until the next question, the least that any rank's own pace allows for the lag. The
    question travels over CPU tensors, so that no GPU is waited for; and where ticks are short, its
    answer is taken at the next one, so that no rank waits for another.
    """

    def __init__(
        self,
        mesh: Mesh,
        request: StopRequest,
        heartbeat: Heartbeat,
        clock: Callable[[], float] = time.monotonic,
        *,
        wants_save: Callable[[], bool] = lambda: False,
    ) -> None:
        """Ask `request` whether to stop and, with the same question, `wants_save`."""
        self._mesh = mesh
        self._wants_save = wants_save
        self._request = request
        self._heartbeat = heartbeat
        self._clock = clock
        self._answer: Callable[[], list[float]] | None = None
        """Of the question that is under way."""
        self.begin()

    def begin(self) -> None:
        """Start again with a question at the next tick: what comes has a pace of its own."""
        if self._answer is not None:
            self._wait_for(self._answer)  # its answer is dropped: the next question is the same
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
            return self._receive(self._answer)
        self._num_left -= 1
        if self._num_left > 0:
            return False
        self._answer = self._ask()
        return self._gap == 1 and self._receive(self._answer)

    def _ask(self) -> Callable[[], list[float]]:
        pace = self._gap / max(self._clock() - self._asked_s, 1e-6)
        gap = min(max(1, int(pace * _LAG_S)), _MAX_GROWTH * self._gap)
        is_asked = float(self._request.signal_name is not None)
        return self._mesh.max_later(
            [is_asked, float(self._wants_save()), -float(gap), -self._request.remaining_s]
        )

    def _receive(self, answer: Callable[[], list[float]]) -> bool:
        stop, save, minus_gap, minus_remaining_s = self._wait_for(answer)
        self._save_agreed |= save > 0
        if stop:
            self._request.limit(-minus_remaining_s)
        self._gap = self._num_left = int(-minus_gap)
        self._asked_s = self._clock()
        return stop > 0

    def _wait_for(self, answer: Callable[[], list[float]]) -> list[float]:
        self._heartbeat.collective(AGREE)
        self._answer = None
        return answer()
