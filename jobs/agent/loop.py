"""One loop that waits for descriptors, signals and moments; between them nothing wakes up."""

from __future__ import annotations

import os
import select
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Callback = Callable[[], object]

_SIGNALS_AT_ONCE = 512
_WAKE = 0
"""No signal's number: a thread of this process has news."""


class Timer:
    """A callback at a moment; `cancel` it, or move its `deadline_s`."""

    def __init__(self, deadline_s: float, callback: Callback) -> None:
        """Call `callback` at `deadline_s` of the monotonic clock."""
        self.deadline_s = deadline_s
        self.callback = callback

    def cancel(self) -> None:
        """Forget it."""
        self.deadline_s = float("inf")


class Loop:
    """Calls back, one at a time, in the thread that runs it."""

    def __init__(self) -> None:
        """Begin with nothing to wait for."""
        self._poll = select.poll()
        self._readers: dict[int, Callback] = {}
        self._timers: list[Timer] = []
        self._on_signal: dict[int, Callable[[int], object]] = {}
        self.on_wake: Callback = lambda: None
        """Called in the loop after another thread's `wake`."""
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
        timer = Timer(time.monotonic() + delay_s, callback)
        self._timers.append(timer)
        return timer

    def catch(self, signums: Iterable[int], callback: Callable[[int], object]) -> None:
        """Call back with each of these signals that arrives."""
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for signum in signums:
            self._on_signal[signum] = callback
            signal.signal(signum, _note)

    def wake(self) -> None:
        """Have a waiting loop look again; the only method for another thread."""
        try:
            os.write(self._wake_write, bytes([_WAKE]))
        except OSError:
            return  # full: it wakes up anyway

    def run(self, until: Callable[[], object], limit_s: float | None = None) -> bool:
        """Wait until something is so, or for `limit_s` at most; return whether it is."""
        deadline_s = float("inf") if limit_s is None else time.monotonic() + limit_s
        while not until():
            now_s = time.monotonic()
            if now_s >= deadline_s:
                return False
            self._turn(now_s, deadline_s)
        return True

    def pause(self, seconds: float) -> None:
        """Go on for so long, whatever comes."""
        self.run(lambda: False, seconds)

    def _turn(self, now_s: float, deadline_s: float) -> None:
        wait_s = min([deadline_s, *(timer.deadline_s for timer in self._timers)]) - now_s
        # Rounded up: a little too early would be once more in vain.
        timeout_ms = None if wait_s == float("inf") else max(0, int(wait_s * 1000) + 1)
        for fd, _ in self._poll.poll(timeout_ms):
            reader = self._readers.get(fd)  # one before it may have forgotten it
            if reader:
                reader()
        now_s = time.monotonic()
        due = [timer for timer in self._timers if timer.deadline_s <= now_s]
        self._timers = [t for t in self._timers if now_s < t.deadline_s < float("inf")]
        for timer in due:
            timer.callback()

    def _take_signals(self) -> None:
        try:
            data = os.read(self._wake_read, _SIGNALS_AT_ONCE)
        except BlockingIOError:
            return
        for signum in data:
            if signum == _WAKE:
                self.on_wake()
            elif signum in self._on_signal:
                self._on_signal[signum](signum)


def _note(_signum: int, _frame: object) -> None:
    """Do nothing: Python has written the signal's number to the loop's pipe."""
