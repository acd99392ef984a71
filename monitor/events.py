"""The run's log of events: one JSON line an event, each appended with a single write."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

Event = dict[str, Any]

_LOCK_LIMIT_S = 1.0
"""For all tries together, however long a server takes for each; less than the board waits."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.2
_MOST = 2**63
"""No count, step or byte of a run is as large; larger ones overflow a float."""

_NO_TEXT = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")
"""What JSON can write and no file's name or terminal can hold: NUL, and half a character."""


@dataclass(frozen=True, slots=True)
class EventLog:
    """Where to tell events, and as whom.

    Args:
        path: `events.jsonl` of the run.
        attempt: the number of this start of the run, from 1.
        host: the node's name.
        now: the time, with an offset.

    """

    path: str
    attempt: int
    host: str
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def append(self, event: str, **further: object) -> None:
        """Append one event, its keys in the order of the contract.

        Raises:
            OSError: it could not be written.

        """
        stamp = self.now().astimezone(UTC).isoformat(timespec="milliseconds")
        line: Event = {
            "time": stamp.replace("+00:00", "Z"),
            "event": event,
            "source": "monitor",
            "attempt": self.attempt,
            "host": self.host,
            **further,
        }
        data = (json.dumps(line, ensure_ascii=False) + "\n").encode()
        fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _lock(fd)
            if _is_torn(fd):
                data = b"\n" + data
            num_written = os.write(fd, data)  # one write: lines of several writers never mix
        finally:
            os.close(fd)
        if num_written < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)


def _lock(descriptor: int) -> None:
    """Wait for other writers of a file; closing it lets go.

    On NFS, two nodes that append in the same moment write over each other. Where there are no
    locks, or somebody does not let go of one, it is written without.
    """
    deadline_s = time.monotonic() + _LOCK_LIMIT_S
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return
            # Not all nodes at once, or the server is busy with those that ask in vain.
            time.sleep(min(left_s, pause_s * random.uniform(0.5, 1.0)))  # noqa: S311 -- no secret
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        except OSError:
            return
        else:
            return


def _is_torn(fd: int) -> bool:
    """Whether the last line has no end: on a full disk somebody wrote but half of it."""
    size = os.fstat(fd).st_size
    return size > 0 and os.pread(fd, 1, size - 1) != b"\n"


def read(data: bytes) -> tuple[list[Event], int]:
    """Read JSON lines; a line that is no JSON object, such as a torn last one, is left out.

    Returns:
        The objects, and the number of lines left out.

    """
    events: list[Event] = []
    num_unreadable = 0
    for line in data.split(b"\n"):
        if not line.strip():
            continue
        event = _parse(line)
        if event is None:
            num_unreadable += 1
        else:
            events.append(event)
    return events, num_unreadable


def _parse(line: bytes) -> Event | None:
    try:
        event = json.loads(line, parse_int=_whole)
        if _NO_TEXT.search(line):
            event = _as_text(event)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _whole(digits: str) -> int:
    value = int(digits)
    if abs(value) >= _MOST:
        raise ValueError(digits)
    return value


def _as_text(value: object) -> object:
    """Put a mark in the place of each character that is none, in keys as well."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode().replace("\0", "?")
    if isinstance(value, list):
        return [_as_text(one) for one in value]
    if isinstance(value, dict):
        return {_as_text(key): _as_text(one) for key, one in value.items()}
    return value
