"""What people read: lines on standard error, and a mistake of the user's as one of them."""

from __future__ import annotations

import os
import select
from contextlib import suppress

from rundir.text import problem

TYPE_CHECKING = False

PROGRAM = "prelaunch"
_FULL_MS = 2000
"""How long a line waits for room before it is lost."""
_full: set[int] = set()
"""Descriptors that had none for so long; the next line does not wait."""


class UsageError(Exception):
    """The user's input or environment is wrong: one line, exit code 64, no retry.

    Args:
        rule: What must hold, with its subject: "MASTER_PORT must be free on gpu01".
        found: What was found instead: "29500 taken".
        remedy: What to do: "unset it to have a free one chosen".

    """

    def __init__(self, rule: str, found: str, remedy: str) -> None:
        super().__init__(problem(rule, found, remedy))


class Exit(Exception):  # noqa: N818 -- the program's end, and not always an error
    """The program ends with a code; what there was to report is reported."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def info(text: str, program: str = PROGRAM) -> None:
    """Write one line to standard error. A log on a full disk must not end the job."""
    write(2, f"{program}: {' '.join(text.splitlines())}\n")


def write(fd: int, text: str) -> None:
    """Write to a descriptor, and lose what it does not take: a reader may have stopped."""
    data = os.fsencode(text)
    with suppress(OSError):
        while data and _has_room_soon(fd):
            with suppress(BlockingIOError):  # another writer took the room
                data = data[os.write(fd, data[: select.PIPE_BUF]) :]


def _has_room_soon(fd: int) -> bool:
    is_soon = has_room(fd, 0 if fd in _full else _FULL_MS)
    (_full.discard if is_soon else _full.add)(fd)
    return is_soon


def has_room(fd: int, limit_ms: int | None = None) -> bool:
    """Wait until a descriptor takes PIPE_BUF bytes without blocking, or is broken."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(limit_ms))


def write_some(fd: int, data: bytes) -> int:
    """Write as much as there is room for; wait if there is none. For a thread: that has no bound.

    Returns:
        Bytes written; 0 where a descriptor that does not block had no room.

    """
    try:
        return os.write(fd, data)
    except BlockingIOError:
        has_room(fd)
        return 0
