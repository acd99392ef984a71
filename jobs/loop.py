"""The one loop of a supervisor or an agent: descriptors, signals, moments, and calls in threads.

Everything is called in the thread that runs it, one at a time; between two events nothing wakes up.
"""

from __future__ import annotations

import _thread
import collections
import os
import select
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Callback = Callable[[], object]

T = TypeVar("T")

_READ_BYTES = 4096
_WAKE = b"\0"
"""No signal's number: a thread of this process has news."""
_NEVER_S = float("inf")


def _nothing(*_: object) -> None:
    pass


class Timer:
    """A callback at a moment, once or again and again, until it is cancelled."""

    def __init__(self, delay_s: float, callback: Callback, period_s: float = _NEVER_S) -> None:
        """Begin now."""
        self.deadline_s = time.monotonic() + delay_s
        self.period_s = period_s
        self.callback = callback

    def cancel(self) -> None:
        """Call no longer."""
        self.deadline_s = self.period_s = _NEVER_S


class Loop:
    """Waits for all that may happen, and calls back."""

    def __init__(self) -> None:
        """Begin with nothing to wait for."""
        self._poll = select.poll()
        self._readers: dict[int, Callback] = {}
        self._timers: list[Timer] = []
        self._on_signal: dict[int, Callable[[int], object]] = {}
        self._calls: collections.deque[Callback] = collections.deque()
        # Never blocking: a handler that waits for room would be this process waiting for itself.
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self.watch(self._wake_read, self._take_signals)

    def watch(self, fd: int, callback: Callback) -> None:
        """Call back whenever a descriptor can be read."""
        self._readers[fd] = callback
        self._poll.register(fd, select.POLLIN)

    def forget(self, fd: int) -> None:
        """Wait for a descriptor no longer."""
        if self._readers.pop(fd, None):
            self._poll.unregister(fd)

    def after(self, delay_s: float, callback: Callback) -> Timer:
        """Call back once, after so many seconds."""
        self._timers.append(Timer(delay_s, callback))
        return self._timers[-1]

    def every(self, period_s: float, callback: Callback) -> Timer:
        """Call back again and again, one period from now on."""
        self._timers.append(Timer(period_s, callback, period_s))
        return self._timers[-1]

    def catch(
        self,
        signums: Iterable[int],
        callback: Callable[[int], object],
        at_once: Callable[[int, object], object] = _nothing,
    ) -> None:
        """Call back with each of these signals that arrives.

        `at_once` is the handler, called wherever this process is: it may set a flag.
        """
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for signum in signums:
            self._on_signal[signum] = callback
            signal.signal(signum, at_once)

    def wake(self, callback: Callback = _nothing) -> None:
        """Call back in the loop, which looks again; the one method for other threads."""
        self._calls.append(callback)
        with suppress(BlockingIOError):  # else it wakes up anyway
            os.write(self._wake_write, _WAKE)

    def in_background(
        self, call: Callable[[], T], then: Callable[[T | None], object] = _nothing
    ) -> None:
        """Make a call that may take long, in a thread; the loop hands its result to `then`.

        That is None if the call raised, silently if an OSError.
        """

        def run() -> None:
            result = None
            try:
                with suppress(OSError):
                    result = call()
            finally:
                self.wake(lambda: then(result))

        try:
            _thread.start_new_thread(run, ())
        except RuntimeError:  # ranks have used up what this user may start
            run()

    def call(
        self,
        call: Callable[[], T],
        limit_s: float = _NEVER_S,
        until: Callable[[], object] = _nothing,
    ) -> T | None:
        """Make a call in a thread and wait for it, or until something else is so; its result.

        None if it raised an OSError, or was not waited for to the end.
        """
        results: list[T | None] = []
        self.in_background(call, results.append)
        self.run(lambda: results or until(), limit_s)
        return results[0] if results else None

    def run(self, until: Callable[[], object], limit_s: float = _NEVER_S) -> bool:
        """Wait until something is so, or for `limit_s` at most; return whether it is."""
        deadline_s = time.monotonic() + limit_s
        while not until():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return False
            self.turn(left_s)
        return True

    def pause(self, seconds: float) -> None:
        """Run for so long."""
        self.run(lambda: False, seconds)

    def turn(self, limit_s: float) -> None:
        """Wait once, and act on what happened."""
        due_s = min((timer.deadline_s for timer in self._timers), default=_NEVER_S)
        wait_s = min(limit_s, due_s - time.monotonic())
        # Rounded up: a little too early would be once more in vain.
        timeout_ms = None if wait_s == _NEVER_S else max(0, int(wait_s * 1000) + 1)
        for fd, _ in self._poll.poll(timeout_ms):
            self._readers.get(fd, _nothing)()  # one before it may have forgotten it
        while self._calls:
            self._calls.popleft()()
        self._call_timers(time.monotonic())

    def _call_timers(self, now_s: float) -> None:
        for timer in [timer for timer in self._timers if timer.deadline_s <= now_s]:
            if timer.deadline_s <= now_s:  # one before it may have cancelled it
                timer.deadline_s = max(timer.deadline_s + timer.period_s, now_s)
                timer.callback()
        self._timers = [timer for timer in self._timers if timer.deadline_s < _NEVER_S]

    def _take_signals(self) -> None:
        with suppress(BlockingIOError):
            for signum in os.read(self._wake_read, _READ_BYTES):
                self._on_signal.get(signum, _nothing)(signum)
