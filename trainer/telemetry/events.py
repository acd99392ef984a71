"""events.jsonl: who did what, when. One line, one write, to a file opened for appending."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import random
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


_LOCK_LIMIT_S = 2.0
"""For all tries together, however long a server takes for each: the training waits meanwhile."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.2


def utc_now() -> str:
    """Return the time as the contract writes it, such as 2026-11-21T04:17:29.123Z."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def append_line(path: Path, line: dict[str, object], *, is_shared: bool = False) -> None:
    """Append `line` as JSON; a number that is not finite becomes null, as JSON has none.

    A file that `is_shared` has other writers, whom this one waits for. A record that cannot be
    written costs a warning, never the run.
    """
    values = {key: finite(value) for key, value in line.items()}
    data = (json.dumps(values, ensure_ascii=False) + "\n").encode()
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if is_shared:
                _lock(descriptor)
            if _ends_in_half_a_line(descriptor):
                data = b"\n" + data  # else this line would be lost with it
            num_written = os.write(descriptor, data)
        finally:
            os.close(descriptor)
        if num_written < len(data):  # no error to the system, which took what there was room for
            found = f"{os.strerror(errno.ENOSPC)}: {num_written} of {len(data)} bytes"
            raise OSError(errno.ENOSPC, found)  # noqa: TRY301 -- told like what the system raises
    except OSError as error:
        print(f"trainer: could not write to {path}: {error}", file=sys.stderr, flush=True)


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


def _ends_in_half_a_line(descriptor: int) -> bool:
    """Whether somebody could not finish the last line."""
    size_bytes = os.fstat(descriptor).st_size
    return size_bytes > 0 and os.pread(descriptor, 1, size_bytes - 1) != b"\n"


def finite(value: object) -> object:
    """Return `value`, or None if it is a float that JSON has no word for."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True, kw_only=True)
class EventLog:
    """The trainer's pen for a run's event log."""

    path: Path
    attempt: int
    host: str

    def write(self, event: str, **further: object) -> None:
        """Append an event with the keys that the contract asks for, in its order."""
        head = {"time": utc_now(), "event": event, "source": "trainer"}
        line = {**head, "attempt": self.attempt, "host": self.host, **further}
        append_line(self.path, line, is_shared=True)
