"""Files that a run left behind: only plain ones are read, for a pipe keeps its reader for ever."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class NotPlainError(OSError):
    """Something else has the name: a folder, a pipe, a device."""


def size_bytes(path: Path) -> int:
    """Return the size of a plain file. Raises NotPlainError, or OSError if there is none."""
    # Opened, as NFS answers who only asks from a cache, which may be older than the file. A pipe
    # without a writer, or a device, does not keep who opens it so.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise NotPlainError(f"{path.name} is no file")
    return found.st_size


def read_text(path: Path) -> str:
    """Return the text of a plain file. Raises as `size_bytes`; ValueError if it is not UTF-8."""
    size_bytes(path)
    return path.read_text("utf-8")
