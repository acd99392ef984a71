"""Where a rank is, in shared memory, for a watcher outside the process to read at any time.

The file `rank-<RANK>` in DDP_BEAT_DIR has 80 bytes, little-endian:

| bytes | what |
| --- | --- |
| 0-7 | the letters DDPBEAT1 |
| 8-15 | pid |
| 16-23 | steps completed in this run, as in metrics.jsonl |
| 24-31 | time of this heartbeat: CLOCK_MONOTONIC, ns |
| 32-39 | the phase that begins now: a `Phase` |
| 40-47 | heartbeats so far |
| 48-55 | collectives so far: the same number on each rank at the same place |
| 56-63 | 1 + the steps completed when this start of the run began to train; before that 0 |
| 64-79 | UUID of its GPU or MIG instance; 0 without one, and before it is chosen |

`child-<RANK>` is a line of text by the rank's agent: pid of its command, its local rank, and
`trainer` or `command`.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

DIRECTORY = "DDP_BEAT_DIR"
"""The variable that names the directory of this node's ranks."""

MAGIC = b"DDPBEAT1"
LAYOUT = struct.Struct("<8s7q16s")
SIZE_BYTES = LAYOUT.size

# What the writer stores by one copy each, never by `pack_into`, which zeroes first.
HEAD, HEAD_PLACE = struct.Struct("<8sq"), slice(0, 16)
BEAT, BEAT_PLACE = struct.Struct("<qqqqq"), slice(16, 56)
FIRST, FIRST_PLACE = struct.Struct("<q"), slice(56, 64)
GPU_PLACE = slice(64, 80)

RANK_PREFIX = "rank-"
CHILD_PREFIX = "child-"
AGENT_PREFIX = "agent-"
"""Of the socket to which the processes of a rank send their events."""


class Phase(IntEnum):
    """What a rank does from one heartbeat to the next."""

    START = 0
    DATA = 1
    FORWARD = 2
    BACKWARD = 3
    """The reduction of its gradients included."""
    UPDATE = 4
    AGREE = 5
    LOG = 6
    VALIDATE = 7
    SAVE = 8
    LOAD = 9
    END = 10


_PHASE_NAMES = tuple(phase.name.lower() for phase in Phase)


class Heartbeat(NamedTuple):
    """The last heartbeat of one rank: what began then and has not ended yet."""

    rank: int
    pid: int
    step: int
    time_ns: int
    """CLOCK_MONOTONIC, which all processes of a node share."""
    phase: str
    num_heartbeats: int
    collective: int
    """Collectives so far; the same number on each rank at the same place."""
    first_step: int | None = None
    """Steps completed when this start of the run began to train; None before that."""
    gpu: str | None = None
    """UUID of its GPU or MIG instance, in 32 digits; None where it has none, or not yet."""


class Child(NamedTuple):
    """The command of one rank, as its agent started it."""

    rank: int
    pid: int
    local_rank: int
    is_trainer: bool
    """Our trainer, which has heartbeats; a command of the user's own does not."""


def parse(rank: int, data: bytes) -> Heartbeat | None:
    """Read the 80 bytes of a heartbeat; None if they are not one, or not a whole one."""
    if len(data) != SIZE_BYTES:
        return None
    magic, pid, step, time_ns, phase, count, collective, first, gpu = LAYOUT.unpack(data)
    if magic != MAGIC or min(pid, time_ns, count) <= 0:
        return None  # not begun, or just being written: there is no heartbeat at 0
    first_step = first - 1 if first > 0 else None
    uuid = gpu.hex() if any(gpu) else None
    name = _PHASE_NAMES[phase] if 0 <= phase < len(_PHASE_NAMES) else f"phase {phase}"
    return Heartbeat(rank, pid, step, time_ns, name, count, collective, first_step, uuid)


def child_line(pid: int, local_rank: int, *, is_trainer: bool) -> bytes:
    """Write what `child-<RANK>` holds."""
    return f"{pid} {local_rank} {'trainer' if is_trainer else 'command'}\n".encode()


def parse_child(rank: int, data: bytes) -> Child | None:
    """Read an agent's line; None if it is not complete."""
    words = data.decode(errors="replace").split()
    if len(words) != 3 or not (words[0].isdecimal() and words[1].isdecimal()):  # noqa: PLR2004
        return None
    return Child(rank, int(words[0]), int(words[1]), words[2] == "trainer")
