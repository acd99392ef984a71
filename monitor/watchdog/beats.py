"""What the ranks of this node leave in DDP_BEAT_DIR: where each of them is, and what runs there.

`rank-<r>` has 80 bytes, little-endian, and is written by `trainer/telemetry/heartbeat.py`:

| bytes | what |
| --- | --- |
| 0-7 | the letters DDPBEAT1 |
| 8-15 | pid |
| 16-23 | steps completed in this run |
| 24-31 | time of this beat: CLOCK_MONOTONIC, ns |
| 32-39 | the phase that began then: a place in `PHASES` |
| 40-47 | beats so far |
| 48-55 | points so far at which all ranks meet |
| 56-63 | 1 + the steps completed when this start of the run began to train; before that 0 |
| 64-79 | UUID of its GPU or MIG instance; 0 without one, and before it is chosen |

`child-<r>` is a line of text by the launcher: pid of the rank's command, its local rank, and
`trainer` or `command`.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

_MAGIC = b"DDPBEAT1"
_LAYOUT = struct.Struct("<8s7q16s")

PHASES = (
    "start",
    "data",
    "forward",
    "backward",
    "update",
    "agree",
    "log",
    "validate",
    "save",
    "load",
    "end",
)
"""A phase's name by its number."""


@dataclass(frozen=True, slots=True)
class Beat:
    """The last beat of one rank: what began then and has not ended yet."""

    rank: int
    pid: int
    step: int
    time_ns: int
    """CLOCK_MONOTONIC, which all processes of a node share."""
    phase: str
    count: int
    collective: int
    """Points so far at which all ranks meet; the same number on each rank at the same place."""
    first_step: int | None = None
    """Steps completed when this start of the run began to train; None before that."""
    gpu: str | None = None
    """UUID of its GPU or MIG instance, in 32 digits; None where it has none, or not yet."""


@dataclass(frozen=True, slots=True)
class Child:
    """The command of one rank, as its launcher started it."""

    rank: int
    pid: int
    local_rank: int
    is_trainer: bool
    """Our trainer, which beats; a command of the user's own does not."""


def read_beats(directory: str) -> dict[int, Beat]:
    """Read every rank's last beat; a file that is none, or not yet, is left out."""
    beats = (parse_beat(rank, data) for rank, data in _files(directory, "rank-", _LAYOUT.size))
    return {beat.rank: beat for beat in beats if beat is not None}


def read_children(directory: str) -> dict[int, Child]:
    """Read which commands the launchers of this node have started."""
    children = (parse_child(rank, data) for rank, data in _files(directory, "child-", 64))
    return {child.rank: child for child in children if child is not None}


class Progress(NamedTuple):
    """Of a rank's last beat, who it is, how far, and on which GPU."""

    pid: int
    step: int
    gpu: str | None


class BeatFiles:
    """The beats of a directory, kept open: for who looks every second."""

    def __init__(self, directory: str) -> None:
        """Look into `directory`; `find` finds what is there."""
        self._directory = directory
        self._files: dict[int, int] = {}
        self._last: dict[int, Progress] = {}

    def find(self) -> None:
        """Open the files that are there now, and leave those that are gone."""
        self.close()
        for name in _names(self._directory):
            number = name.removeprefix("rank-")
            if number != name and number.isdecimal():
                with suppress(OSError):
                    path = f"{self._directory}/{name}"
                    self._files[int(number)] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> dict[int, Progress]:
        """Read how far every rank is, or was; a file that never was a beat is left out."""
        for rank, fd in self._files.items():
            with suppress(OSError):
                beat = parse_beat(rank, os.pread(fd, _LAYOUT.size, 0))
                if beat is not None:
                    self._last[rank] = Progress(beat.pid, beat.step, beat.gpu)
        return dict(self._last)

    def close(self) -> None:
        """Close the files."""
        for fd in self._files.values():
            os.close(fd)
        self._files, self._last = {}, {}


def parse_beat(rank: int, data: bytes) -> Beat | None:
    """Read the 80 bytes of a beat; None if they are not one, or not a whole one."""
    if len(data) != _LAYOUT.size:
        return None
    magic, pid, step, time_ns, phase, count, collective, first, gpu = _LAYOUT.unpack(data)
    if magic != _MAGIC or min(pid, time_ns, count) <= 0:
        return None  # not begun, or just being written: nobody beats at 0
    first_step = first - 1 if first > 0 else None
    uuid = gpu.hex() if any(gpu) else None
    return Beat(rank, pid, step, time_ns, _phase_name(phase), count, collective, first_step, uuid)


def parse_child(rank: int, data: bytes) -> Child | None:
    """Read a launcher's line; None if it is not complete."""
    words = data.decode(errors="replace").split()
    if len(words) != 3 or not (words[0].isdecimal() and words[1].isdecimal()):  # noqa: PLR2004
        return None
    return Child(rank, int(words[0]), int(words[1]), words[2] == "trainer")


def _phase_name(number: int) -> str:
    return PHASES[number] if 0 <= number < len(PHASES) else f"phase {number}"


def _files(directory: str, prefix: str, num_bytes: int) -> list[tuple[int, bytes]]:
    """Read the head of each file `<prefix><rank>`; what cannot be read is gone or not ours."""
    found = []
    for name in _names(directory):
        number = name.removeprefix(prefix)
        if number == name or not number.isdecimal():
            continue
        try:
            with open(f"{directory}/{name}", "rb", buffering=0) as file:  # noqa: PTH123
                found.append((int(number), file.read(num_bytes)))
        except OSError:
            continue
    return found


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)  # noqa: PTH208 - pathlib costs start time
    except OSError:
        return []
