"""A standard output that takes no more: its reader has gone, or its disk is full."""

from __future__ import annotations

import errno
import os
import sys

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What writing to it fails with, where it is a file."""


def is_full(error: OSError) -> bool:
    """Whether an error is that of a standard output without room: a file's has its name."""
    return error.filename is None and error.errno in _NO_ROOM


def drop() -> None:
    """Leave nothing for the interpreter to write, and to fail at, when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
