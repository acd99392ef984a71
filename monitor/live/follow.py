"""A file that another process writes: only what is new of it, in whole lines.

It is opened only when it has changed, and read from where we were. At the first look, and when
more has come than anybody wants to see, only its last part is read. It may be rotated (`FILE`
becomes `FILE.1` and another begins), shrink, be written anew, vanish and come back.
"""

from __future__ import annotations

import os

from rundir.plain import open_plain

_ROTATED = ".1"
_NEWLINE = b"\n"
_LAST_BYTES = 256  # a row of a log, with its time


class Follower:
    """One file.

    Args:
        path: it need not be there yet.
        tail_bytes: no more than this is read at a time.
        head_bytes: of its beginning, where the first look does not begin there.

    """

    def __init__(self, path: str, tail_bytes: int, head_bytes: int = 0) -> None:
        self.path = path
        self.head = b""
        """Whole lines of the beginning, if the first look left it out."""
        self.written_s: float | None = None
        """When it was last written, since 1970, by the clock of its file system; None: never."""
        self.is_there = False
        self.num_begun = 0
        """How often reading began anew: at first, at a rotation, a truncation, a rewriting."""
        self._tail_bytes = tail_bytes
        self._head_bytes = head_bytes
        self._file: tuple[int, int] | None = None
        self._offset = 0  # behind the last whole line
        self._last = b""  # its end: a file that lacks it there is another one
        self._seen = (-1, -1)  # size and time when we last looked inside

    def poll(self) -> bytes:
        """Give the whole lines that are new; an unfinished last one comes when it is finished.

        Raises:
            OSError: it is there and cannot be read.

        """
        try:
            status = os.stat(self.path)  # noqa: PTH116 - twice a second for hundreds of files
        except FileNotFoundError:
            self.is_there = False
            rest, self._file = self._rest_of_rotated(), None  # its number may be given to another
            return rest
        self.is_there, self.written_s = True, status.st_mtime
        seen = (status.st_size, status.st_mtime_ns)
        file = (status.st_dev, status.st_ino)
        if file == self._file and seen == self._seen:
            return b""
        rest = b"" if file == self._file else self._rest_of_rotated()
        if file != self._file or status.st_size < self._offset:
            self._begin()
        self._file = file
        data = rest + self._read(status.st_size)
        self._seen = seen
        return data

    def _begin(self) -> None:
        self.num_begun += 1
        self._offset, self._last, self.head = 0, b"", b""

    def _read(self, size: int) -> bytes:
        """Read from where we are."""
        with open_plain(self.path) as file:
            fd = file.fileno()
            if os.pread(fd, len(self._last), self._offset - len(self._last)) != self._last:
                self._begin()  # this is not what we read before: it was written anew
            return self._since(fd, size)

    def _since(self, fd: int, size: int) -> bytes:
        """Read whole lines, or the last part of too many, and go behind them."""
        begin = self._offset
        if size - begin > self._tail_bytes:
            if not begin and self._head_bytes:
                self.head = _whole(os.pread(fd, self._head_bytes, 0))
            begin = size - self._tail_bytes - 1  # with the end of the line before
            data = os.pread(fd, self._tail_bytes + 1, begin)
            skipped = data.find(_NEWLINE) + 1
            begin, data = begin + skipped, data[skipped:]
        else:
            data = os.pread(fd, size - begin, begin)
        whole = _whole(data)
        if whole:
            self._offset = begin + len(whole)
            self._last = whole[-_LAST_BYTES:]
        return whole

    def _rest_of_rotated(self) -> bytes:
        """Read what was still written to the old file, if it lies where rotation puts it."""
        if self._file is None:
            return b""
        try:
            with open_plain(self.path + _ROTATED) as file:
                status = os.fstat(file.fileno())
                if (status.st_dev, status.st_ino) != self._file or status.st_size <= self._offset:
                    return b""
                return self._since(file.fileno(), status.st_size)
        except OSError:
            return b""


def _whole(data: bytes) -> bytes:
    return data[: data.rfind(_NEWLINE) + 1]
