"""What the ranks of this node leave in DDP_BEAT_DIR; `rundir.heartbeat` has the layout."""

from __future__ import annotations

import os
from contextlib import suppress

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


def _files(directory: str, prefix: str, num_bytes: int) -> list[tuple[int, bytes]]:
    """Read the head of each file `<prefix><rank>`; what cannot be read is gone or not ours."""
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    found = []
    for name in names:
        number = name.removeprefix(prefix)
        if number != name and number.isdecimal():
            with suppress(OSError), open(f"{directory}/{name}", "rb", buffering=0) as file:
                found.append((int(number), file.read(num_bytes)))
    return found
