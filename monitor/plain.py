"""Files that a run left behind: only plain ones are read, for a pipe keeps its reader for ever."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO


def open_plain(path: str) -> BinaryIO:
    """Open a plain file for reading.

    Raises:
        OSError: there is none, or something else has its name: a folder, a pipe, a device.

    """
    # Without O_NONBLOCK a pipe that nobody writes to would not even be opened.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(fd, "rb")
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "it is a pipe or a device", path)
