"""The events of a rank: the agent's own, and those of the trainer and monitor that it started.

Up the agent's standard output where a supervisor reads it, else to the run's log of events itself.
What may not arrive, because the job is ending or nobody reads any more, is kept in the node's own
file as well: readers of both take the same line once.
"""

from __future__ import annotations

import collections
import socket
import time
from typing import TYPE_CHECKING

from jobs.agent.command import is_preflight
from jobs.messages import info, write
from rundir import channel, events
from rundir.paths import RunDir

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jobs.agent.output import Output
    from jobs.loop import Loop

_MAX_DATAGRAM = 1 << 20
_LAST_S = 1
_FRESH_S = 5
"""How long srun may hold what a rank printed."""
_MAX_FRESH = 64
_HANG_REPORT = b'"event": "hang_report"'
"""Means nothing of ranks that are being ended: it would hide what was seen when they hung."""


class Reports:
    """Delivers events, one at a time, in the order of their arrival."""

    def __init__(
        self, environ: Mapping[str, str], output: Output, is_ending: Callable[[], bool]
    ) -> None:
        """Deliver for the rank whose environment this is.

        Once it `is_ending`, the supervisor may be gone before it has read all.
        """
        files = RunDir(environ["DDP_RUN_DIR"])
        node = environ["DDP_NODE"]
        self.is_supervised = environ.get(channel.SUPERVISED) == "1"
        self._output = output
        self._file = files.node_events(node) if self.is_supervised else files.events
        self._is_preflight = is_preflight(environ)  # whose reports are no events of the run
        self._rank = environ.get("RANK", node)
        self._num_delivered = 0
        self._socket: socket.socket | None = None
        self._is_ending = is_ending
        self._fresh: collections.deque[tuple[float, bytes]] = collections.deque(maxlen=_MAX_FRESH)
        self._has_failed = False
        log = events.EventLog(self.deliver, "launcher", int(environ["DDP_ATTEMPT"]), node)
        self.write: Callable[..., None] = log.write

    def deliver(self, line: bytes) -> None:
        """Deliver an event's line, if only to the node's file. A full disk must not end the job."""
        must_keep = not self.is_supervised or self._is_ending() or self._output.is_broken
        must_keep = must_keep or self._has_failed
        if must_keep:
            self._keep(line)
        else:
            self._fresh.append((time.monotonic(), line))
        if self.is_supervised and not self._output.is_broken:
            self._num_delivered += 1
            frames = channel.frames(line, f"{self._rank}.{self._num_delivered}")
            self._output.write_event(b"" if must_keep else line, frames)

    def fail(self) -> None:
        """Keep what was just delivered, and what comes: the rank has failed.

        srun then ends the step, and may throw away what it had not yet handed on.
        """
        since_s = time.monotonic() - _FRESH_S
        self._has_failed = True
        if self.is_supervised:
            self._keep(b"".join(line for when_s, line in self._fresh if when_s >= since_s))

    def keep_undelivered(self) -> None:
        """Keep what nobody reads any more."""
        if self._output.is_broken:
            self._keep(b"".join(self._output.take_undelivered()))

    def _keep(self, data: bytes) -> None:
        if not data or self._is_preflight:
            return
        try:
            events.append(self._file, data)
        except OSError as error:
            info(f"could not append to {self._file}: {error.strerror}; going on", "launcher")

    def listen(self, path: str, loop: Loop) -> bool:
        """Take the events of this rank's processes at a socket; False where there can be none."""
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        receiver.setblocking(False)
        try:
            with channel.short_name(path) as name:
                receiver.bind(name)
        except OSError:
            receiver.close()
            return False
        self._socket = receiver
        loop.watch(receiver.fileno(), self.receive)
        return True

    def receive(self) -> None:
        """Deliver what has come in."""
        while self._socket:
            try:
                data = self._socket.recv(_MAX_DATAGRAM)
            except OSError:
                return
            if data.endswith(b"\n") and not (self._is_ending() and _HANG_REPORT in data):
                self.deliver(data)

    def close(self, loop: Loop) -> None:
        """Keep what nobody reads in time; there is nothing to come."""
        self.receive()
        loop.run(lambda: self._output.is_idle, _LAST_S)
        if self._socket:
            self._socket.close()
            self._socket = None
        self._keep(b"".join(self._output.take_undelivered()))


def report_refusal(environ: Mapping[str, str], why: str) -> None:
    """Report that a rank does not start here; where nobody reads it, its own line is enough."""
    if environ.get(channel.SUPERVISED) != "1" or "RANK" not in environ:
        return
    rank = int(environ["RANK"])

    def deliver(line: bytes) -> None:
        write(1, channel.frames(line, f"{rank}.0").decode())

    log = events.EventLog(deliver, "launcher", int(environ["DDP_ATTEMPT"]), environ["DDP_NODE"])
    log.write("failure", rank=rank, error=why)
