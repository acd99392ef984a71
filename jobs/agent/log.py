"""A rank's log, copied to the job's as it grows, each line with the rank before it.

The rank writes to a file and to nothing else: no pipe can block it or be held open by a grandchild.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from rundir.channel import MARK

if TYPE_CHECKING:
    from jobs.agent.output import Output
    from jobs.loop import Loop

_READ_BYTES = 1 << 16
_DELAY_S = 0.1
"""What is written within this time is copied at once."""
_IN_MODIFY = 0x2
_IN_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC


class LogFollower:
    """Follows a file from a place on, to `output`."""

    def __init__(self, path: str, offset: int, rank: str, loop: Loop, output: Output) -> None:
        """Begin at byte `offset` of the file, which is there."""
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._offset = offset
        self._prefix = b"[%s] " % rank.encode()
        self._is_line_start = True
        self._loop = loop
        self._output = output
        self._inotify = _watch_file(path)

    def start(self) -> None:
        """Follow it while the loop runs."""
        if self._inotify is not None:
            with suppress(OSError):  # before the file: what comes later is reported again
                os.read(self._inotify, _READ_BYTES)
        if self._copy() and self._inotify is not None:
            self._loop.watch(self._inotify, self._on_growth)
        else:
            self._loop.after(_DELAY_S, self.start)

    def finish(self, limit_s: float) -> None:
        """Copy the rest, but for what nobody takes in time; a last line gets its end."""
        if self._inotify is not None:
            self._loop.forget(self._inotify)
        self._loop.run(lambda: self._copy(is_last=True) and self._output.is_idle, limit_s)
        if not self._is_line_start:
            self._output.write_text(b"\n")
            self._loop.run(lambda: self._output.is_idle, 1)

    def _on_growth(self) -> None:
        assert self._inotify is not None  # noqa: S101 -- else nobody calls
        self._loop.forget(self._inotify)
        self._loop.after(_DELAY_S, self.start)

    def _copy(self, *, is_last: bool = False) -> bool:
        """Copy what there is and has room; return whether that is all."""
        while not self._output.is_full:
            try:
                data = os.pread(self._fd, _READ_BYTES, self._offset)
                file_size = os.fstat(self._fd).st_size
            except OSError:  # such as ESTALE: removed on the server; the rank is none the worse
                return True
            size = data.rfind(b"\n") + 1
            if is_last and data and not size and len(data) < _READ_BYTES:
                self._emit(data + b"\n")  # in one piece: others write to the same pipe
                self._offset += len(data)
                continue
            if not size and (is_last or len(data) == _READ_BYTES):
                size = len(data)
            if not size:
                if not data and file_size < self._offset:
                    self._offset = 0  # its writer has begun anew
                return True
            self._emit(data[:size])
            self._offset += size
        return False

    def _emit(self, data: bytes) -> None:
        text = data.replace(MARK, b"")
        body, end = (text[:-1], b"\n") if text.endswith(b"\n") else (text, b"")
        start = self._prefix if self._is_line_start else b""
        self._output.write_text(start + body.replace(b"\n", b"\n" + self._prefix) + end)
        self._is_line_start = bool(end)


def _watch_file(path: str) -> int | None:
    """Return an inotify descriptor that can be read when the file has grown; None without one."""
    try:
        import ctypes  # noqa: PLC0415 -- a Python may be built without

        libc = ctypes.CDLL(None)
        fd = libc.inotify_init1(_IN_NONBLOCK_CLOEXEC)
        if fd < 0:
            return None
        if libc.inotify_add_watch(fd, os.fsencode(path), _IN_MODIFY) < 0:
            os.close(fd)
            return None
    except (ImportError, OSError, AttributeError):
        return None
    return int(fd)
