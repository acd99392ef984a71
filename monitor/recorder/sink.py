"""A log file that takes whole blocks or nothing, and outlives a full disk."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from monitor.errors import UserError
from rundir.plain import plain_opener
from rundir.text import problem

if TYPE_CHECKING:
    from collections.abc import Callable

_USERS_FAULT = {
    errno.ENOENT: "create its directory first",
    errno.ENOTDIR: "create its directory first",
    errno.EISDIR: "name a file in it",
    errno.EACCES: "name a place that you may write to",
    errno.EPERM: "name a place that you may write to",
    errno.EROFS: "name a place that you may write to",
    errno.ENAMETOOLONG: "use a shorter name",
    errno.ELOOP: "name a plain file, no link",
    errno.EINVAL: "name a plain file, no pipe or device",
}


class Sink:
    """Appends blocks of whole lines to one file, each with a single write.

    A block that does not fit is taken back entirely. The first failure is reported by `emit`,
    later ones only when a write had succeeded in between.
    """

    def __init__(
        self,
        path: str,
        emit: Callable[[str], None],
        max_bytes: int | None = None,
        num_kept: int = 1,
    ) -> None:
        """Open `path` for appending; what it holds already stays.

        Args:
            path: the file.
            emit: writes a line for a person.
            max_bytes: from this size on `turn` moves the file away; None: never.
            num_kept: how many are kept as `.1` (the newest) and so on.

        Raises:
            UserError: the path cannot be written, for a reason that waiting does not mend.

        """
        self._path = path
        self._emit = emit
        self._fd: int | None = None
        self._failing = False
        self._max_bytes, self._limit_bytes = max_bytes, max_bytes
        self._num_kept = num_kept
        self._reopen = False
        self._identity: tuple[int, int] | None = None
        """Of the file that was written to last."""
        self._is_other = False
        """The file that was opened is another one, as it was moved away on another machine."""
        self._is_torn = False
        """It ends with a half line, as a killed recorder leaves one: ours begins on the next."""
        try:
            self._open()
        except OSError as error:
            remedy = _USERS_FAULT.get(error.errno or 0)
            if remedy is not None:
                rule = "--out must be a file that can be appended to"
                raise UserError(rule, f"{path}: {error.strerror}", remedy) from error
            self._report(error)

    def append(self, block: str) -> bool:
        """Write a block; False, with nothing of it kept, where it does not fit."""
        try:
            fd = self._open()
            self._write(fd, (b"\n" if self._is_torn else b"") + block.encode())
        except OSError as error:
            self._report(error)
            return False
        self._failing = self._is_torn = False
        return True

    def reopen(self) -> None:
        """Check at the next turn whether the file was moved away; may be called by a signal."""
        self._reopen = True

    def turn(self) -> bool:
        """Rotate or reopen where that is due; True: what comes next is first in a new file."""
        with suppress(OSError):  # the next block reports it
            self._open()
        is_new, self._is_other = self._is_other, False
        try:
            if self._rotate() or self._is_gone():
                self.close()
                self._identity, is_new = None, True
        except OSError as error:
            rule = f"log {self._path} must be moved away at {self._max_bytes} bytes"
            self._emit(problem(rule, error.strerror, "make its directory writable, it grows on"))
            self._limit_bytes = (self._limit_bytes or 0) + (self._max_bytes or 0)
        return is_new

    def _rotate(self) -> bool:
        """Move the files on where this one is large enough; whether it was."""
        if self._limit_bytes is None or self._fd is None:
            return False
        if os.fstat(self._fd).st_size < self._limit_bytes:
            return False
        for number in range(self._num_kept, 0, -1):
            older = f"{self._path}.{number - 1}" if number > 1 else self._path
            with suppress(FileNotFoundError):
                os.replace(older, f"{self._path}.{number}")
        self._limit_bytes = self._max_bytes
        return True

    def _is_gone(self) -> bool:
        """Whether somebody has moved the file away or removed it; checked after `reopen`."""
        if not self._reopen or self._fd is None:
            return False
        self._reopen = False
        try:
            return not os.path.samestat(os.stat(self._path), os.fstat(self._fd))
        except OSError:
            return True  # or it was replaced on another machine

    def close(self) -> None:
        """Close the file; raises nothing."""
        fd, self._fd = self._fd, None
        with suppress(OSError):
            if fd is not None:
                os.close(fd)

    def _open(self) -> int:
        if self._fd is None:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._fd = plain_opener(self._path, flags)
            found = os.fstat(self._fd)
            before, self._identity = self._identity, (found.st_dev, found.st_ino)
            self._is_other |= before not in (None, self._identity)
            self._is_torn = found.st_size > 0 and not _ends_line(self._fd, found.st_size)
        return self._fd

    def _write(self, fd: int, data: bytes) -> None:
        size = os.fstat(fd).st_size
        num_written = os.write(fd, data)
        if num_written != len(data):
            os.ftruncate(fd, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _report(self, error: OSError) -> None:
        if not self._failing:
            rule = f"log {self._path} must take each sample whole"
            remedy = "make room and later samples are kept, this one is not"
            self._emit(problem(rule, error.strerror, remedy))
        self._failing = True
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            self.close()  # a stale or broken file is opened anew at the next sample


def _ends_line(fd: int, size: int) -> bool:
    try:
        return os.pread(fd, 1, size - 1) == b"\n"
    except OSError:
        return True  # a pipe or a device has no end to check
