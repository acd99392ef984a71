"""Where this rank is, in shared memory, for a watcher outside the process to read at any time.

The format is in rundir/heartbeat.py. The numbers of a heartbeat may be of two heartbeats, none is
half of one.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import signal
from pathlib import Path
from time import monotonic_ns

from rundir.heartbeat import (
    BEAT,
    BEAT_PLACE,
    FIRST,
    FIRST_PLACE,
    GPU_PLACE,
    HEAD,
    HEAD_PLACE,
    MAGIC,
    RANK_PREFIX,
    SIZE_BYTES,
    Phase,
)
from rundir.paths import RunDir
from rundir.plain import plain_opener
from trainer.text import warn

# Plain numbers: looking up a member of an enumeration costs as much as the heartbeat itself.
START, DATA, FORWARD, BACKWARD, UPDATE, AGREE, LOG, VALIDATE, SAVE, LOAD, END = map(int, Phase)


class Heartbeat:
    """Records every change of phase. This one, without a watcher, does nothing: the null object."""

    step = 0
    """Steps completed; set before the heartbeat that records it."""

    def compute_on(self, uuid: str) -> None:
        """Computing is done on this GPU; "" for none."""

    def begin(self, step: int) -> None:
        """Training begins, or begins again, after so many steps of the run."""

    def enter(self, phase: int) -> None:
        """A phase begins that waits for no other rank."""

    def collective(self, phase: int) -> None:
        """A phase with a collective of all ranks begins; `phase` may be the current one."""


class SharedHeartbeat(Heartbeat):
    """Heartbeats in a file in shared memory, one copy of 40 bytes each."""

    def __init__(self, path: Path) -> None:
        """Create the file. Raises OSError where that cannot be."""
        beside = path.with_name(f".{path.name}.partial")  # no reader finds an incomplete file
        descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(descriptor, 0, SIZE_BYTES)  # a full disk is an error here
            self._memory = mmap.mmap(descriptor, SIZE_BYTES)
        finally:
            os.close(descriptor)
        self.step = 0
        self._count = 0
        self._num_collectives = 0
        self.enter(START)
        self._memory[HEAD_PLACE] = HEAD.pack(MAGIC, os.getpid())
        beside.replace(path)

    def compute_on(self, uuid: str) -> None:
        """Computing is done on this GPU; "" for none."""
        self._memory[GPU_PLACE] = bytes.fromhex(uuid.replace("-", "")).rjust(16, b"\0")

    def begin(self, step: int) -> None:
        """Training begins, or begins again, after so many steps of the run."""
        self.step = step
        self._memory[FIRST_PLACE] = FIRST.pack(step + 1)

    def enter(self, phase: int) -> None:
        """A phase begins that waits for no other rank."""
        self._count = count = self._count + 1
        self._memory[BEAT_PLACE] = BEAT.pack(
            self.step, monotonic_ns(), phase, count, self._num_collectives
        )

    def collective(self, phase: int) -> None:
        """A phase with a collective of all ranks begins."""
        self._num_collectives += 1
        self.enter(phase)


def open_heartbeat(folder: Path | None, rank: int) -> Heartbeat:
    """Open the heartbeat in `folder`, or none without one; a lost folder costs a warning."""
    if folder is None:
        return Heartbeat()
    try:
        return SharedHeartbeat(folder / f"{RANK_PREFIX}{rank}")
    except OSError as error:
        warn(f"no heartbeat, the watchdog is blind: {error}")
        return Heartbeat()


_STANDARD_ERROR = 2


class Stacks:
    """On SIGUSR2 the stacks of all threads are written, whatever this process is stuck in.

    To a file in the run directory of a job, else to standard error.

    The file must be open beforehand: a process that cannot run Python cannot open one either.
    """

    def __init__(self, run_dir: Path | None, attempt: int, rank: int) -> None:
        """Listen from now on."""
        self._path: Path | None = None
        if run_dir is None or not run_dir.is_dir():
            faulthandler.register(signal.SIGUSR2, file=_STANDARD_ERROR, all_threads=True)
            return
        path = Path(RunDir(str(run_dir)).stack(attempt, rank))
        try:
            path.parent.mkdir(exist_ok=True)
            self._file = open(path, "a", encoding="utf-8", opener=plain_opener)  # noqa: SIM115
        except OSError as error:
            warn(f"no stacks on SIGUSR2: {error}")
            return
        faulthandler.register(signal.SIGUSR2, file=self._file, all_threads=True, chain=False)
        self._path = path

    def close(self) -> None:
        """Leave no empty file behind. The signal keeps its handler: a late one does no harm."""
        if self._path is not None and self._path.exists() and self._path.stat().st_size == 0:
            self._path.unlink()
