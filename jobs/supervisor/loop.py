"""The one loop of a job: what arrives on descriptors, signals, the time, and background calls.

Signal handlers set a flag and wake the loop; the loop acts.
"""

from __future__ import annotations

import collections
import os
import selectors
import signal
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_TURN_S = 1.0
"""The loop looks at its conditions so often even if nothing happens."""
_REQUESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Signals by which somebody asks the job for something."""


class Timer:
    """Calls a function every so many seconds, until it is cancelled."""

    def __init__(self, period_s: float, act: Callable[[], object]) -> None:
        """Begin one period from now."""
        self.period_s = period_s
        self.act = act
        self.due_s = time.monotonic() + period_s


class Loop:
    """Waits for all that may happen, and calls who wants to know."""

    def __init__(self) -> None:
        """Open the descriptor by which signals and threads wake the loop."""
        self.stop_signal: str | None = None
        """The last signal that asked the job to stop, such as TERM."""
        self.on_signal: Callable[[str], object] = lambda _name: None
        self._selector = selectors.DefaultSelector()
        self._timers: list[Timer] = []
        self._signals: collections.deque[int] = collections.deque()
        self._results: collections.deque[Callable[[], object]] = collections.deque()
        self._wake_fd, self._woken_fd = os.pipe()
        os.set_blocking(self._wake_fd, False)
        os.set_blocking(self._woken_fd, False)
        self._selector.register(self._wake_fd, selectors.EVENT_READ, lambda: None)

    def listen(self) -> None:
        """From now on signals are for this loop.

        What was ignored when the script was started stays so: that is how nohup works.
        """
        signal.set_wakeup_fd(self._woken_fd, warn_on_full_buffer=False)
        for number in _REQUESTS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._remember)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.stop_signal = signal.Signals(number).name[len("SIG") :]
        self._signals.append(number)

    def deafen(self) -> None:
        """Ignore what asks the job to stop: it is ending."""
        for number in _REQUESTS:
            signal.signal(number, signal.SIG_IGN)

    def watch(self, fd: int, act: Callable[[], object]) -> None:
        """Call when a descriptor has something to read."""
        self._selector.register(fd, selectors.EVENT_READ, act)

    def forget(self, fd: int) -> None:
        """Watch a descriptor no longer."""
        self._selector.unregister(fd)

    def every(self, period_s: float, act: Callable[[], object]) -> Timer:
        """Call again and again."""
        self._timers.append(Timer(period_s, act))
        return self._timers[-1]

    def cancel(self, timer: Timer) -> None:
        """Call no longer."""
        if timer in self._timers:
            self._timers.remove(timer)

    def in_background(
        self, call: Callable[[], object], then: Callable[[], object] = lambda: None
    ) -> None:
        """Make a call that may take long, beside the loop; `then` runs in the loop."""

        def run() -> None:
            try:
                call()
            finally:
                self._results.append(then)
                self.wake()

        threading.Thread(target=run, daemon=True).start()

    def wake(self) -> None:
        """Have the loop look at its conditions, from any thread."""
        with suppress(BlockingIOError):  # else it is awake
            os.write(self._woken_fd, b"\0")

    def run_until(self, is_over: Callable[[], bool], limit_s: float | None = None) -> bool:
        """Run until something holds; False if it does not in time."""
        deadline_s = None if limit_s is None else time.monotonic() + limit_s
        while not is_over():
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return False
            self.turn(_TURN_S if left_s is None else min(left_s, _TURN_S))
        return True

    def pause(self, seconds: float) -> None:
        """Run for so long, or until a signal asks the job to stop."""
        self.run_until(lambda: self.stop_signal is not None, seconds)

    def rest(self, seconds: float) -> None:
        """Run for so long."""
        self.run_until(lambda: False, seconds)

    def turn(self, limit_s: float) -> None:
        """Wait once, and act on what happened."""
        due_s = min((timer.due_s for timer in self._timers), default=None)
        if due_s is not None:
            limit_s = min(limit_s, max(due_s - time.monotonic(), 0))
        for key, _ in self._selector.select(0 if self._signals or self._results else limit_s):
            key.data()
        self._drain()
        while self._signals:
            self.on_signal(signal.Signals(self._signals.popleft()).name[len("SIG") :])
        while self._results:
            self._results.popleft()()
        now_s = time.monotonic()
        for timer in [timer for timer in self._timers if timer.due_s <= now_s]:
            timer.due_s = max(timer.due_s + timer.period_s, now_s)
            timer.act()

    def _drain(self) -> None:
        try:
            while os.read(self._wake_fd, 4096):
                pass
        except BlockingIOError:
            pass


class Sink:
    """Writes in a thread of its own, in order: a slow file or reader does not hold up the loop.

    Args:
        write: Called with what is to be written; an OSError loses it.
        max_pending: Bytes that may wait; what comes later is lost until there is room.
        wake: Called when all is written.

    """

    def __init__(
        self,
        write: Callable[[bytes], object],
        max_pending: int,
        wake: Callable[[], object] = lambda: None,
    ) -> None:
        """Start the thread."""
        self._write = write
        self._wake = wake
        self._max_pending = max_pending
        self._pending: collections.deque[bytes] = collections.deque()
        self._num_pending = 0
        self._changed = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    def put(self, data: bytes) -> None:
        """Have something written, soon."""
        with self._changed:
            if self._num_pending <= self._max_pending:
                self._pending.append(data)
                self._num_pending += len(data)
                self._changed.notify()

    def is_idle(self) -> bool:
        """Whether all is written."""
        return self._num_pending == 0

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending)
                taken = list(self._pending)
                self._pending.clear()
            data = b"".join(taken)
            with suppress(OSError):
                self._write(data)
            with self._changed:
                self._num_pending -= len(data)
            self._wake()
