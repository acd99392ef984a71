"""Files that a run left behind: only plain ones are opened; a pipe blocks its reader."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from os import PathLike
    from typing import BinaryIO


class NotPlainError(OSError):
    """Something else has the name: a folder, a pipe, a device."""


def open_plain(path: str | PathLike[str]) -> BinaryIO:
    """Open a plain file for reading.

    Raises:
        OSError: there is none, or something else has its name: a folder, a pipe, a device.

    """
    # Opened, because NFS answers a stat from a cache that may be older than the file; without
    # O_NONBLOCK a pipe without a writer would not even be opened.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(fd, "rb")
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise NotPlainError(errno.EINVAL, "it is a pipe or a device", os.fspath(path))


def plain_opener(path: str, flags: int) -> int:
    """Open a file of a run's to write it, as an `opener` of `open`.

    Where others may write, a link may lead to a file of this user's that they may not write, and a
    pipe that nobody reads keeps for ever who opens it.

    Raises:
        OSError: it is a link, a pipe or a device, or cannot be opened.

    """
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotPlainError(errno.EINVAL, "a pipe or a device", path)
    os.set_blocking(fd, True)
    return fd


def open_log(path: str) -> int:
    """Return a descriptor that appends to a plain file. Raises OSError as `plain_opener`."""
    return plain_opener(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)


def size_bytes(path: str | PathLike[str]) -> int:
    """Return the size of a plain file. Raises as `open_plain`."""
    with open_plain(path) as file:
        return os.fstat(file.fileno()).st_size


def read_text(path: str | PathLike[str]) -> str:
    """Return the text of a plain file. Raises as `open_plain`; ValueError if it is not UTF-8."""
    with open_plain(path) as file:
        return file.read().decode("utf-8")


def tail(path: str | PathLike[str], num_bytes: int, begin: int = 0, stop: int | None = None) -> str:
    """Return the last bytes of a file's from `begin` to `stop` as text; empty if unreadable."""
    with suppress(OSError), open_plain(path) as file:
        stop = os.fstat(file.fileno()).st_size if stop is None else stop
        begin = max(begin, stop - num_bytes, 0)
        file.seek(begin)
        return file.read(max(0, stop - begin)).decode(errors="replace")
    return ""


def names_in(folder: str) -> list[str]:
    """Return the sorted names in a folder; none where it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
