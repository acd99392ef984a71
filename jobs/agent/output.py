"""Standard output of an agent: a thread writes it, because whoever reads it may stop reading."""

from __future__ import annotations

import _thread
import collections
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_PIECE_BYTES = 4096
"""PIPE_BUF: what is written at once to a pipe that others write to as well stays together."""
_FULL_BYTES = 1 << 20
"""Of a rank's log: the rest stays in its file until there is room."""


class Output:
    """Events and text for one descriptor; events go first."""

    def __init__(self, fd: int, on_news: Callable[[], object]) -> None:
        """Write to `fd`; call `on_news` from the thread when it breaks, and when a wait is over."""
        self._fd = fd
        self._on_news = on_news
        self._events: collections.deque[tuple[bytes, bytes]] = collections.deque()
        self._text: collections.deque[bytes] = collections.deque()
        self._num_pending = 0
        self._lock = _thread.allocate_lock()  # of the three above
        self._wanted = _thread.allocate_lock()  # released: the thread has something to do
        self._wanted.acquire()
        self._is_running = False
        self._is_waited_for = False
        self.is_broken = False
        """Nobody reads it any more, or it cannot be written."""

    def write_event(self, line: bytes, frames: bytes) -> None:
        """Write an event's frames; its `line` is kept until they are written."""
        with self._lock:
            self._events.append((line, frames))
        self._begin()

    def write_text(self, data: bytes) -> None:
        """Write a part of the rank's log."""
        if self.is_broken:
            return
        with self._lock:
            self._text.append(data)
            self._num_pending += len(data)
        self._begin()

    @property
    def is_full(self) -> bool:
        """Whether more text should wait."""
        return self._must_wait(_FULL_BYTES)

    @property
    def is_idle(self) -> bool:
        """Whether everything is written, or nothing can be."""
        return not (self._must_wait(1) or (self._events and self._must_wait(0)))

    def _must_wait(self, num_bytes: int) -> bool:
        """Whether so much text is pending; if so, `on_news` is called when nothing is."""
        self._is_waited_for = True  # before the look: the thread may just be finishing
        if self._num_pending >= num_bytes and not self.is_broken:
            return True
        self._is_waited_for = False
        return False

    def take_undelivered(self) -> list[bytes]:
        """Take back the lines of the events that nobody got."""
        with self._lock:
            lines = [line for line, _ in self._events]
            self._events.clear()
        return lines

    def _begin(self) -> None:
        if not self._is_running:  # not before: a process that forks has one thread only
            self._is_running = True
            _thread.start_new_thread(self._run, ())
        if self._wanted.locked():
            self._wanted.release()

    def _run(self) -> None:
        while True:
            self._wanted.acquire()
            while self._write_next():
                pass
            if self._is_waited_for:
                self._is_waited_for = False
                self._on_news()

    def _write_next(self) -> bool:
        """Write one event or one piece of text; False when there is none."""
        if self._events:
            if not self._write(self._events[0][1]):
                return False
            with self._lock:
                if self._events:  # unless it was taken back
                    self._events.popleft()
            return True
        with self._lock:
            if not self._text:
                return False
            data = self._text.popleft()
            size = _piece(data)
            if size < len(data):
                self._text.appendleft(data[size:])
        self._write(data[:size])
        with self._lock:
            self._num_pending -= size
        return True

    def _write(self, data: bytes) -> bool:
        if self.is_broken:
            return False
        try:
            while data:
                size = _piece(data)
                num_written = os.write(self._fd, data[:size])
                data = data[num_written:]
        except OSError:
            self.is_broken = True
            self._on_news()
        return not self.is_broken


def _piece(data: bytes) -> int:
    """Return how much to write at once: whole lines, or a piece of a long one."""
    if len(data) <= _PIECE_BYTES:
        return len(data)
    return data.rfind(b"\n", 0, _PIECE_BYTES) + 1 or _PIECE_BYTES
