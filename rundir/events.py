"""The run's log of events: one JSON line an event, each appended with a single write.

Every line is `{"time", "event", "source", "attempt", "host", …}`, keys in this order. An event is
encoded once, by its reporter; what passes it on passes on the same text, so that two copies of
one event are the same to the letter.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from rundir import paths
from rundir.plain import names_in, open_plain, plain_opener

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    Event = dict[str, Any]

_LOCK_LIMIT_S = 2.0
"""For all tries together, however long a server takes for each: the writer waits meanwhile."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.2
_MOST = 2**63
"""No count, step or byte of a run is as large; larger ones overflow a float."""

_NO_TEXT = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")
"""What JSON can write and no file's name or terminal can hold: NUL, and half a character."""


def time_text(since_epoch_s: float) -> str:
    """Write a time as events have it, such as 2026-11-21T04:17:29.123Z."""
    seconds, ms = divmod(int(since_epoch_s * 1000), 1000)
    return time.strftime(f"%Y-%m-%dT%H:%M:%S.{ms:03d}Z", time.gmtime(seconds))


def finite(value: object) -> object:
    """Return `value`, or None if it is a float that JSON has no word for."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def encode(line: Mapping[str, object]) -> bytes:
    """Write a mapping as one line of JSON; a number that is not finite becomes null."""
    values = {key: finite(value) for key, value in line.items()}
    return (json.dumps(values, ensure_ascii=False) + "\n").encode("utf-8", "replace")


# ---- writing -------------------------------------------------------------------------------------


def append(path: str, data: bytes, *, is_shared: bool = True) -> None:
    """Append whole lines with one write, so that lines of several writers never mix.

    A file that `is_shared` has other writers, which this one waits for. A last line that somebody
    could not finish gets its end, else the new one would be lost with it.

    Raises:
        OSError: it is a link, or could not be written, or not all of it (ENOSPC).

    """
    fd = plain_opener(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
    try:
        if is_shared:
            _lock(fd)
        if _is_torn(fd):
            data = b"\n" + data
        num_written = os.write(fd, data)
    finally:
        os.close(fd)
    if num_written < len(data):  # no error to the system, which took what there was room for
        found = f"{os.strerror(errno.ENOSPC)}: {num_written} of {len(data)} bytes"
        raise OSError(errno.ENOSPC, found, path)


def _lock(fd: int) -> None:
    """Wait for other writers of a file; closing it releases the lock.

    On NFS, two nodes that append in the same moment write over each other. Where there are no
    locks, or somebody does not release one, it is written without.
    """
    deadline_s = time.monotonic() + _LOCK_LIMIT_S
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # noqa: PERF203 -- a loop of tries
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return
            # Not all nodes at once, or the server is busy with those that ask in vain.
            jitter = 0.5 + time.monotonic_ns() % 1024 / 2048
            time.sleep(min(left_s, pause_s * jitter))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        except OSError:
            return
        else:
            return


def _is_torn(fd: int) -> bool:
    """Whether the last line has no end: on a full disk somebody wrote but half of it."""
    size = os.fstat(fd).st_size
    return size > 0 and os.pread(fd, 1, size - 1) != b"\n"


class EventLog:
    """Reports events as one source, in one attempt, from one node."""

    def __init__(
        self,
        deliver: Callable[[bytes], None],
        source: str,
        attempt: int,
        host: str,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Report through `deliver`.

        Args:
            deliver: takes each event's line; see `channel.reporter`.
            source: supervisor's `prelaunch`, agent's `launcher`, `trainer` or `monitor`.
            attempt: the number of this start of the run, from 1.
            host: the node's name.
            now: the time, in seconds since 1970.

        """
        self._deliver = deliver
        self._source = source
        self._now = now
        self.attempt = attempt
        self.host = host

    def write(self, event: str, **further: object) -> None:
        """Report one event, its keys in the order of the contract. Raises OSError as `deliver`."""
        line = {
            "time": time_text(self._now()),
            "event": event,
            "source": self._source,
            "attempt": self.attempt,
            "host": self.host,
        }
        line.update(further)
        self._deliver(encode(line))


# ---- reading -------------------------------------------------------------------------------------


def read(data: bytes) -> tuple[list[Event], int]:
    """Read JSON lines; a line that is no JSON object, such as a torn last one, is skipped.

    Returns:
        The objects, and the number of lines skipped.

    """
    events: list[Event] = []
    num_unreadable = 0
    for line in data.split(b"\n"):
        if not line.strip():
            continue
        event = parse(line)
        if event is None:
            num_unreadable += 1
        else:
            events.append(event)
    return events, num_unreadable


def read_attempt(path: str, name: str, attempt: int) -> Iterator[Event]:
    """Read the events of a name in an attempt; none where the file cannot be read."""
    with suppress(OSError), open_plain(path) as file:
        for line in file:
            event = parse(line) if b'"%s"' % name.encode() in line else None
            if event and event.get("event") == name and event.get("attempt") == attempt:
                yield event


def parse(line: bytes) -> Event | None:
    """Read one JSON line; None if it is no JSON object. A NaN in it is None."""
    try:
        event = json.loads(line, parse_int=_whole, parse_constant=lambda _: None)
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


def read_run(run_dir: str) -> bytes:
    """Read a run's events, those included that a node could not deliver.

    Those come last, and only where the same line was not delivered.

    Raises:
        OSError: there is no `events.jsonl`, or it cannot be read.

    """
    with open_plain(os.path.join(run_dir, paths.EVENTS)) as file:
        data = file.read()
    kept = undelivered(run_dir)
    if not kept:
        return data
    known = set(data.split(b"\n"))
    late = [line for line in b"".join(kept.values()).split(b"\n") if line not in known]
    return b"\n".join([data.rstrip(b"\n"), *late, b""])


def undelivered(run_dir: str) -> dict[str, bytes]:
    """Read what nodes could not deliver: each file's path, and its lines."""
    found: dict[str, bytes] = {}
    for name in names_in(run_dir):
        if paths.NODE_EVENTS.fullmatch(name):
            path = os.path.join(run_dir, name)
            with suppress(OSError), open_plain(path) as file:  # the supervisor may have taken it
                found[path] = file.read()
    return found
