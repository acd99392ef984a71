"""Standard output of an agent: a thread writes it, because its reader may stop."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

from jobs.messages import write_some
from jobs.sink import Sink

if TYPE_CHECKING:
    from collections.abc import Callable

_PIECE_BYTES = 4096
"""PIPE_BUF: what is written at once to a pipe that others write to as well stays together."""
_FULL_BYTES = 1 << 20
"""Of a rank's log: the rest stays in its file until there is room."""


class Output(Sink):
    """Events and text for one descriptor; events go first."""

    def __init__(self, fd: int, on_news: Callable[[], object]) -> None:
        """Write to `fd`; call `on_news` from the thread when all is written, or it is broken."""
        super().__init__(self._write_pieces, on_news)
        self._fd = fd
        self._events: collections.deque[tuple[bytes, bytes]] = collections.deque()
        self.is_broken = False
        """Nobody reads it any more, or it cannot be written."""

    def write_event(self, line: bytes, frames: bytes) -> None:
        """Write an event's frames; its `line` is kept until they are written."""
        with self._lock:
            self._events.append((line, frames))
            self._begin()

    def write_text(self, data: bytes) -> None:
        """Write a part of the rank's log."""
        if not self.is_broken:
            self.put(data)

    @property
    def is_full(self) -> bool:
        """Whether more text should wait."""
        return self._num_pending >= _FULL_BYTES and not self.is_broken

    @property
    def is_idle(self) -> bool:
        """Whether everything is written, or nothing can be."""
        return self.is_broken or (self._num_pending == 0 and not self._events)

    def take_undelivered(self) -> list[bytes]:
        """Take back the lines of the events that nobody got."""
        with self._lock:
            lines = [line for line, _ in self._events]
            self._events.clear()
        return lines

    def _write_next(self) -> bool:
        """Write one event or one piece of text; False when there is none, or it is broken."""
        with self._lock:
            event = self._events[0] if self._events else None
            data = event[1] if event else self._pending.popleft() if self._pending else b""
            if not event and len(data) > _PIECE_BYTES:
                size = _piece(data)
                self._pending.appendleft(data[size:])
                data = data[:size]
        self._write(data)
        with self._lock:
            if not event:
                self._num_pending -= len(data)
            elif self._events and not self.is_broken:  # else it was taken back, or may be
                self._events.popleft()
        return bool(data) and not self.is_broken

    def _write_pieces(self, data: bytes) -> None:
        try:
            while data and not self.is_broken:
                data = data[write_some(self._fd, data[: _piece(data)]) :]
        except OSError:
            self.is_broken = True


def _piece(data: bytes) -> int:
    """Return how much to write at once: whole lines, or a piece of a long one."""
    if len(data) <= _PIECE_BYTES:
        return len(data)
    return data.rfind(b"\n", 0, _PIECE_BYTES) + 1 or _PIECE_BYTES
