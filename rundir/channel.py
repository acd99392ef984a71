r"""How an event travels from a rank to the supervisor: up the step's own standard output.

A trainer or monitor hands its event to the agent that started it, as one datagram. The agent
writes it to its standard output in frames, between the lines of its rank's log:

    \x1eddp <id> <part>/<parts> <chunk>\n

srun hands on what a rank prints line by line, cuts lines at 1,024 bytes, and may put another
rank's line between the pieces: so an event is cut into frames that are shorter, and a frame may
begin in the middle of another's line.
"""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from rundir import events
from rundir.paths import RunDir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

MARK = b"\x1e"
"""Begins a frame; nothing else on a step's standard output may hold it."""
AGENT_SOCKET = "DDP_AGENT_SOCKET"
"""The variable that names the socket of the agent that started this process."""
RUN_DIR = "DDP_RUN_DIR"
"""The variable that names the run directory of the job."""
SUPERVISED = "DDP_SUPERVISED"
"""The variable that is 1 where a supervisor reads the step's standard output."""

_HEAD = MARK + b"ddp "
_MAX_CHUNK = 800
_MAX_FRAME = 1024
_MAX_PENDING = 4096
"""Events of which parts are missing; older ones were cut off by a death."""
_SEND_LIMIT_S = 0.5
"""How long a reporter waits for an agent that is busy, before it writes to the file."""


# ---- agent to supervisor -------------------------------------------------------------------------


def frames(line: bytes, event_id: str) -> bytes:
    """Cut an event's line into frames; `event_id` is unique in the step, without spaces."""
    text = line.rstrip(b"\n")
    chunks = [text[at : at + _MAX_CHUNK] for at in range(0, len(text), _MAX_CHUNK)]
    return b"".join(
        b"%s%s %d/%d %s\n" % (_HEAD, event_id.encode(), part, len(chunks), chunk)
        for part, chunk in enumerate(chunks, 1)
    )


class FrameReader:
    """Takes events out of what a step prints; the rest is passed on, in order."""

    def __init__(self) -> None:
        """Begin with nothing read."""
        self._rest = b""
        self._pending: dict[bytes, dict[int, bytes]] = {}

    def feed(self, data: bytes) -> tuple[bytes, list[bytes]]:
        """Take what was read next.

        Returns:
            What is to be passed on, and the lines of the events that are now complete, each with
            its newline.

        """
        data, self._rest = self._rest + data, b""
        passed: list[bytes] = []
        lines: list[bytes] = []
        at = 0
        while True:
            begin = data.find(MARK, at)
            if begin < 0:
                passed.append(data[at:])
                break
            passed.append(data[at:begin])
            end = data.find(b"\n", begin)
            if end < 0 and len(data) - begin <= _MAX_FRAME:
                self._rest = data[begin:]
                break
            frame = data[begin:end] if end >= 0 else b""
            if not frame.startswith(_HEAD):  # no frame of ours: text that only looks like one
                passed.append(MARK)
                at = begin + 1
                continue
            lines += self._joined(frame[len(_HEAD) :])
            at = end + 1
        return b"".join(passed), lines

    def _joined(self, frame: bytes) -> list[bytes]:
        event_id, _, rest = frame.partition(b" ")
        position, _, chunk = rest.partition(b" ")
        try:
            part, num = map(int, position.split(b"/"))
        except ValueError:
            return []
        if num == 1:
            return [chunk + b"\n"]
        parts = self._pending.setdefault(event_id, {})
        parts[part] = chunk
        if len(parts) < num:
            if len(self._pending) > _MAX_PENDING:
                del self._pending[next(iter(self._pending))]
            return []
        del self._pending[event_id]
        return [b"".join(parts[part] for part in sorted(parts)) + b"\n"]


# ---- trainer and monitor to their agent ----------------------------------------------------------


def reporter(
    run_dir: str, node: str, environ: Mapping[str, str] | None = None
) -> Callable[[bytes], None]:
    """Return how a process of a rank delivers its events; give it to `events.EventLog`.

    By the agent that started it, if there is one and it is of the same run. What cannot be
    delivered so is kept in the node's own file; without a supervisor events go to `events.jsonl`
    itself.
    """
    environ = os.environ if environ is None else environ
    files = RunDir(run_dir)
    is_same_run = environ.get(RUN_DIR) == files.path
    path = environ.get(AGENT_SOCKET) if is_same_run else None
    is_supervised = is_same_run and environ.get(SUPERVISED) == "1"
    kept_in = files.node_events(node) if is_supervised else files.events

    def deliver(data: bytes) -> None:
        if not (path and _send(path, data)):
            events.append(kept_in, data)

    return deliver


@contextmanager
def short_name(path: str) -> Iterator[str]:
    """Name a socket by its directory's descriptor: a path may have more than the 107 bytes allowed.

    Raises OSError where there is no such directory.
    """
    directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{os.path.basename(path)}"
    finally:
        os.close(directory)


def _send(path: str, data: bytes) -> bool:
    """Send one datagram; False where there is no receiver."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(_SEND_LIMIT_S)
        with short_name(path) as name:
            return sender.sendto(data, name) == len(data)
    return False
