"""What the ranks of this node leave in DDP_BEAT_DIR; `rundir.heartbeat` has the layout."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

from rundir.heartbeat import (
    CHILD_PREFIX,
    RANK_PREFIX,
    SIZE_BYTES,
    Child,
    Heartbeat,
    parse,
    parse_child,
)

_MAX_LINE = 64


def read_heartbeats(directory: str) -> dict[int, Heartbeat]:
    """Read every rank's last heartbeat; a file that is none, or not yet, is skipped."""
    read = (parse(rank, data) for rank, data in _files(directory, RANK_PREFIX, SIZE_BYTES))
    return {one.rank: one for one in read if one is not None}


def read_children(directory: str) -> dict[int, Child]:
    """Read which commands the agents of this node have started."""
    read = (parse_child(rank, data) for rank, data in _files(directory, CHILD_PREFIX, _MAX_LINE))
    return {one.rank: one for one in read if one is not None}


class Progress(NamedTuple):
    """Of a rank's last heartbeat: its process, its step, its GPU."""

    pid: int
    step: int
    gpu: str | None


class HeartbeatFiles:
    """The heartbeats of a directory, kept open, to be read every second."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._files: dict[int, int] = {}
        self._last: dict[int, Progress] = {}

    def find(self) -> None:
        """Open the files that are there now, and leave those that are gone."""
        self.close()
        for rank, path in _paths(self._directory, RANK_PREFIX).items():
            with suppress(OSError):
                self._files[rank] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> dict[int, Progress]:
        """Read how far every rank is, or was; a file that never was a heartbeat is skipped."""
        for rank, fd in self._files.items():
            with suppress(OSError):
                heartbeat = parse(rank, os.pread(fd, SIZE_BYTES, 0))
                if heartbeat is not None:
                    self._last[rank] = Progress(heartbeat.pid, heartbeat.step, heartbeat.gpu)
        return dict(self._last)

    def close(self) -> None:
        """Close the files."""
        for fd in self._files.values():
            os.close(fd)
        self._files, self._last = {}, {}


def _files(directory: str, prefix: str, num_bytes: int) -> list[tuple[int, bytes]]:
    """Read the head of each file `<prefix><rank>`; what cannot be read is gone or not ours."""
    found = []
    for rank, path in _paths(directory, prefix).items():
        with suppress(OSError), open(path, "rb", buffering=0) as file:  # noqa: PTH123
            found.append((rank, file.read(num_bytes)))
    return found


def _paths(directory: str, prefix: str) -> dict[int, str]:
    """List the files `<prefix><rank>` by rank."""
    try:
        names = os.listdir(directory)  # noqa: PTH208 - pathlib costs start time
    except OSError:
        return {}
    numbers = ((name.removeprefix(prefix), name) for name in names if name.startswith(prefix))
    return {int(number): f"{directory}/{name}" for number, name in numbers if number.isdecimal()}
