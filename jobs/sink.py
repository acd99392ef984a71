"""What is written by a thread of its own: a slow file or reader holds up nothing else."""

from __future__ import annotations

import _thread
import collections
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Sink:
    """Writes in the order in which it is given.

    Args:
        write: Called with what is to be written; an OSError loses it.
        wake: Called, in the thread, when all is written.
        max_pending: Bytes that may wait; what comes later is lost until there is room.

    """

    def __init__(
        self,
        write: Callable[[bytes], object],
        wake: Callable[[], object],
        max_pending: float = float("inf"),
    ) -> None:
        self._write = write
        self._wake = wake
        self._max_pending = max_pending
        self._pending: collections.deque[bytes] = collections.deque()
        self._num_pending = 0
        self._num_lost = 0
        self._lock = _thread.allocate_lock()  # of the three above
        self._wanted = _thread.allocate_lock()  # released: the thread has something to do
        self._wanted.acquire()
        self._is_running = False
        self._writing_since_s: float | None = None

    def put(self, data: bytes) -> None:
        """Have something written, soon."""
        with self._lock:
            if self._num_pending > self._max_pending:
                self._num_lost += len(data)
                return
            self._pending.append(data)
            self._num_pending += len(data)
            self._begin()

    @property
    def is_idle(self) -> bool:
        """Whether all is written."""
        return self._num_pending == 0

    @property
    def writing_s(self) -> float:
        """How long the write that is under way has taken; 0 if none is."""
        since_s = self._writing_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def take_lost(self) -> int:
        """Return how many bytes found no room since the last call."""
        with self._lock:
            num_lost, self._num_lost = self._num_lost, 0
        return num_lost

    def _begin(self) -> None:
        """Have the thread look; the lock is held."""
        if not self._is_running:  # not before: a process that forks has one thread only
            with suppress(RuntimeError):  # ranks have used up what this user may start: next time
                _thread.start_new_thread(self._run, ())
                self._is_running = True
        if self._wanted.locked():
            self._wanted.release()

    def _run(self) -> None:
        while True:
            self._wanted.acquire()
            while self._write_next():
                pass
            self._wake()

    def _write_next(self) -> bool:
        """Write what there is; False when there is nothing."""
        with self._lock:
            data = b"".join(self._pending)
            self._pending.clear()
        if not data:
            return False
        self._writing_since_s = time.monotonic()
        with suppress(OSError):
            self._write(data)
        self._writing_since_s = None
        with self._lock:
            self._num_pending -= len(data)
        return True
