"""A file that another process writes: only what is new of it, in whole lines.

It is opened only when it has changed, and read from where we were. It may be rotated (`FILE`
becomes `FILE.1` and another begins), shrink, be written anew, vanish and come back.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from monitor.logs import dmon, files
from monitor.logs.log_events import Place
from monitor.logs.parser import Parser
from rundir.plain import open_plain

if TYPE_CHECKING:
    from monitor.logs.parser import Stretch

_ROTATED = ".1"
_NEWLINE = b"\n"
_LAST_BYTES = 256  # a row of a log, with its time
_BLOCK_BYTES = 2**22


class Follower:
    """One file.

    Args:
        path: it need not be there yet.
        tail_bytes: at the first poll, and when more than this has come, only as much is read, from
            its end. None: all of it is read, a block at each poll.
        head_bytes: of its beginning, where the first poll does not begin there.

    """

    def __init__(self, path: str, tail_bytes: int | None, head_bytes: int = 0) -> None:
        self.path = path
        self.head = b""
        """Whole lines of the beginning, if the first poll left it out."""
        self.written_s: float | None = None
        """When it was last written, since 1970, by the clock of its file system; None: never."""
        self.is_there = False
        self.num_begun = 0
        """How often reading began anew: at first, at a rotation, a truncation, a rewriting."""
        self.num_rest_bytes = 0
        """Of what the last poll gave, those that are of the file that was rotated away."""
        self._tail_bytes = tail_bytes
        self._head_bytes = head_bytes
        self._file: tuple[int, int] | None = None
        self._offset = 0  # behind the last whole line
        self._last = b""  # its end: a file that lacks it there is another one
        self._seen = (-1, -1)  # size and time at the last poll inside
        self.is_at_end = True
        """Whether the last poll gave all that there was."""

    def poll(self) -> bytes:
        """Give the whole lines that are new; an unfinished last one comes when it is finished.

        Raises:
            OSError: it is there and cannot be read.

        """
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            self.is_there = False
            rest, self._file = self._rest_of_rotated(), None  # its number may be given to another
            self.num_rest_bytes = len(rest)
            return rest
        self.is_there, self.written_s = True, status.st_mtime
        seen = (status.st_size, status.st_mtime_ns)
        file = (status.st_dev, status.st_ino)
        self.num_rest_bytes = 0
        if file == self._file and seen == self._seen:
            return b""
        rest = b"" if file == self._file else self._rest_of_rotated()
        if file != self._file or status.st_size < self._offset:
            self._begin()
        self._file = file
        self.num_rest_bytes = len(rest)
        data = rest + self._read(status.st_size)
        self._seen = seen if self.is_at_end else (-1, -1)
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
        self.is_at_end = True
        if self._tail_bytes is None:
            data = self._block(fd, begin, size)
        elif size - begin > self._tail_bytes:
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

    def _block(self, fd: int, begin: int, size: int) -> bytes:
        """Read on, a block with at least one whole line, if there is one."""
        num_bytes = _BLOCK_BYTES
        while True:
            data = os.pread(fd, min(num_bytes, size - begin), begin)
            self.is_at_end = begin + len(data) >= size or not data
            if self.is_at_end or _NEWLINE in data:
                return data
            num_bytes *= 2

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


class GrowingLog:
    """A log that is still written: each poll gives the rows that are new, not yet decoded.

    Args:
        path: of the log.
        tail_bytes: as in `Follower`.
        head_bytes: the same; the facts of its GPUs stand there.

    """

    def __init__(self, path: str, tail_bytes: int | None, head_bytes: int = 0) -> None:
        self.file = Follower(path, tail_bytes, head_bytes)
        self.parser = self._new_parser()
        self.no_text: str | None = None
        """Why it is no text of one byte a character; None: it may be."""
        self._num_begun, self._is_begun = 0, True

    def poll(self) -> list[Stretch]:
        """Check whether there is more.

        Raises:
            OSError: it is there and cannot be read.

        """
        return self.take(self.file.poll())

    def take(self, data: bytes) -> list[Stretch]:
        """Give the rows of what a poll of the file gave."""
        rest, data = data[: self.file.num_rest_bytes], data[self.file.num_rest_bytes :]
        stretches = self.parser.take(rest)
        if self.file.num_begun != self._num_begun:
            self._num_begun, self._is_begun = self.file.num_begun, False
        if data and not self._is_begun:
            self._is_begun = True
            stretches += self.parser.end()
            self.no_text = files.no_text(self.file.head or data)
            data = data.removeprefix(files.BYTE_ORDER)
            self._begin(data)
        return stretches if self.no_text else stretches + self.parser.take(data)

    def _begin(self, end: bytes) -> None:
        """Learn from the beginning of a log of which we read only the end."""
        self.parser = self._new_parser()
        head = self.file.head.removeprefix(files.BYTE_ORDER)
        self.parser.learn(head.split(_NEWLINE))
        header = self.parser.heads.header
        is_only = b"\n#" not in end  # something has taken the others away
        if head and not (header and (header.csv or is_only)):
            # a header in cells comes again every 44 rows: until then nothing is guessed
            self.parser.heads, self.parser.has_head = dmon.Heads(), False
        self.parser.is_cut = bool(head)

    def _new_parser(self) -> Parser:
        return Parser(Place(*files.named(self.file.path)), is_patient=False)
