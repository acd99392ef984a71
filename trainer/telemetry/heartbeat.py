"""Where this rank is, in shared memory, for a watcher outside the process to read at any time.

The file `rank-<RANK>` in DDP_BEAT_DIR has 80 bytes, little-endian:

| bytes | what |
| --- | --- |
| 0-7 | the letters DDPBEAT1 |
| 8-15 | pid |
| 16-23 | steps completed in this run, as in metrics.jsonl |
| 24-31 | time of this beat: CLOCK_MONOTONIC, ns |
| 32-39 | the phase that begins now: a `Phase` |
| 40-47 | beats so far |
| 48-55 | points so far at which all ranks meet: the same number on each rank at the same place |
| 56-63 | 1 + the steps completed when this start of the run began to train; before that 0 |
| 64-79 | UUID of its GPU or MIG instance; 0 without one, and before it is chosen |

Stored by one copy, never by `pack_into`, which zeroes first; the numbers of a beat may be of two
beats, none is half of one.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import signal
import struct
import sys
from enum import IntEnum
from time import monotonic_ns
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from pathlib import Path

_MAGIC: Final = b"DDPBEAT1"
_SIZE_BYTES: Final = 80
_HEAD: Final = struct.Struct("<8sq")
_BEAT: Final = struct.Struct("<qqqqq")
_FIRST: Final = struct.Struct("<q")
_HEAD_PLACE: Final = slice(0, 16)
_BEAT_PLACE: Final = slice(16, 56)
_FIRST_PLACE: Final = slice(56, 64)
_GPU_PLACE: Final = slice(64, 80)


class Phase(IntEnum):
    """What a rank does from a beat on to the next."""

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


# A beat is handed plain numbers: looking a member of an enumeration up costs as much as the beat.
START, DATA, FORWARD, BACKWARD, UPDATE, AGREE, LOG, VALIDATE, SAVE, LOAD, END = map(int, Phase)


class Beat(Protocol):
    """Told of every change of phase."""

    step: int
    """Steps completed; set before the beat that is to tell it."""

    def compute_on(self, uuid: str) -> None:
        """Computing is done on this GPU; "" for none."""

    def begin(self, step: int) -> None:
        """Training begins, or begins again, after so many steps of the run."""

    def enter(self, phase: int) -> None:
        """A phase begins that waits for nobody."""

    def meet(self, phase: int) -> None:
        """A phase begins in which all ranks meet; `phase` may be the one that is under way."""


class NoBeat:
    """Nobody watches: the null object."""

    step = 0

    def compute_on(self, uuid: str) -> None:
        """Tell nobody."""

    def begin(self, step: int) -> None:
        """Tell nobody."""

    def enter(self, phase: int) -> None:
        """Tell nobody."""

    def meet(self, phase: int) -> None:
        """Tell nobody."""


class SharedBeat:
    """Beats into a file that lies in memory; a beat is one copy of 40 bytes."""

    def __init__(self, path: Path) -> None:
        """Create the file. Raises OSError where that cannot be."""
        beside = path.with_name(f".{path.name}.partial")  # nobody finds a file that is not whole
        descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(descriptor, 0, _SIZE_BYTES)  # a full disk is an error here
            self._memory = mmap.mmap(descriptor, _SIZE_BYTES)
        finally:
            os.close(descriptor)
        self.step = 0
        self._count = 0
        self._num_meetings = 0
        self.enter(START)
        self._memory[_HEAD_PLACE] = _HEAD.pack(_MAGIC, os.getpid())
        beside.replace(path)

    def compute_on(self, uuid: str) -> None:
        """Computing is done on this GPU; "" for none."""
        self._memory[_GPU_PLACE] = bytes.fromhex(uuid.replace("-", "")).rjust(16, b"\0")

    def begin(self, step: int) -> None:
        """Training begins, or begins again, after so many steps of the run."""
        self.step = step
        self._memory[_FIRST_PLACE] = _FIRST.pack(step + 1)

    def enter(self, phase: int) -> None:
        """A phase begins that waits for nobody."""
        self._count = count = self._count + 1
        self._memory[_BEAT_PLACE] = _BEAT.pack(
            self.step, monotonic_ns(), phase, count, self._num_meetings
        )

    def meet(self, phase: int) -> None:
        """A phase begins in which all ranks meet."""
        self._num_meetings += 1
        self.enter(phase)


def open_beat(folder: Path | None, rank: int) -> Beat:
    """Begin to beat in `folder`, or nowhere without one; a folder that is lost costs a warning."""
    if folder is None:
        return NoBeat()
    try:
        return SharedBeat(folder / f"rank-{rank}")
    except OSError as error:
        print(f"trainer: no beat, the watchdog is blind: {error}", file=sys.stderr, flush=True)
        return NoBeat()


class Stacks:
    """On SIGUSR2 the stacks of all threads go to a file, whatever this process is stuck in.

    The file must be open beforehand: a process that cannot run Python cannot open one either.
    """

    def __init__(self, run_dir: Path | None, attempt: int, rank: int) -> None:
        """Listen from now on, if there is a run directory to write to."""
        self._path: Path | None = None
        if run_dir is None or not run_dir.is_dir():
            return
        path = run_dir / "debug" / f"stack-{attempt}-rank-{rank}.txt"
        try:
            path.parent.mkdir(exist_ok=True)
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            print(f"trainer: no stacks on SIGUSR2: {error}", file=sys.stderr, flush=True)
            return
        faulthandler.register(signal.SIGUSR2, file=self._file, all_threads=True, chain=False)
        self._path = path

    def close(self) -> None:
        """Leave no empty file behind. The signal keeps its handler: a late one does no harm."""
        if self._path is not None and self._path.exists() and self._path.stat().st_size == 0:
            self._path.unlink()
