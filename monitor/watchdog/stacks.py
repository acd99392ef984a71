"""Where a rank is stuck: its stacks, taken from outside.

Our trainer writes them itself on SIGUSR2 (faulthandler: also while it holds the GIL). Any other
Python is asked by py-spy where that is installed. Of the rest /proc shows what it can.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from monitor.logs.files import size_bytes
from rundir import plain, procfs, secrets
from rundir.paths import TRACES, RunDir

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ANSWER_S = 3.0  # how long a process may take to write its stacks after SIGUSR2
_POLL_S = 0.1
_SPY_LIMIT_S = 8.0
_MAX_SPIED = 3  # Python processes of one rank: the command, not all its data loaders
_MAX_BYTES = 2**20

_WAITS_IN = (
    "torch/distributed/",
    "torch/autograd/graph.py",  # the reduction of gradients runs inside of backward
    "torch/nn/parallel/distributed.py",
    "torch/cuda/__init__.py",  # synchronize: the collective is on the device
)
_OURS = f"{Path(__file__).parents[2]}/"
"""Whatever the folder is called into which this project was cloned."""
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3|^<frozen|/\.venv/")


class Frame(NamedTuple):
    """One call: a line of a file, in a function."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        """Write it short: the end of the path is what distinguishes files."""
        name = "/".join(self.file.removeprefix(_OURS).rsplit("/", 3)[-3:])
        return f"{name}:{self.line} in {self.function}"


@dataclass(frozen=True, slots=True)
class Target:
    """A rank to inspect.

    `pid` runs the command; `answers` if it is our trainer, which knows SIGUSR2; `pids` are all
    processes of the rank.
    """

    rank: int
    pid: int
    answers: bool = False
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Stack:
    """What was seen of one rank."""

    top: str | None = None
    """The innermost line, and the user's line that called it; None if it is unknown."""
    path: str | None = None
    """The file that holds all of it."""
    is_waiting: bool = False
    """Whether the main thread is in a call that waits for other ranks."""


def describe(frames: Sequence[Frame], path: str | None) -> Stack:
    """Sum up the frames of a main thread, innermost first."""
    if not frames:
        return Stack(path=path)
    top = str(frames[0])
    if _LIBRARY.search(frames[0].file):
        own = next((frame for frame in frames if not _LIBRARY.search(frame.file)), None)
        top += f", called from {own}" if own else ""
    return Stack(top=top, path=path, is_waiting=_is_waiting(frames))


def _is_waiting(frames: Sequence[Frame]) -> bool:
    """Whether torch's own innermost frames wait for others; a hook of the user's does not."""
    inner = takewhile(lambda frame: "/torch/" in frame.file, frames)
    return any(part in frame.file for frame in inner for part in _WAITS_IN)


_FAULT_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_SPY_FRAME = re.compile(r" {4}(\S+) \((.*):(\d+)\)")


def parse_faulthandler(text: str) -> list[Frame]:
    """Read the main thread of a faulthandler dump: the one that it lists last."""
    threads: list[list[Frame]] = []
    for line in text.splitlines():
        if "(most recent call first)" in line:
            threads.append([])
        elif threads and (found := _FAULT_FRAME.fullmatch(line)):
            threads[-1].append(Frame(found[1], int(found[2]), found[3]))
    return threads[-1] if threads else []


def parse_py_spy(text: str) -> list[Frame]:
    """Read the main thread of `py-spy dump`, or the first one where none is named so."""
    threads: list[tuple[str, list[Frame]]] = []
    for line in text.splitlines():
        if line.startswith("Thread "):
            threads.append((line, []))
        elif threads and (found := _SPY_FRAME.fullmatch(line)):
            threads[-1][1].append(Frame(found[2], int(found[3]), found[1]))
    main = [frames for head, frames in threads if '"MainThread"' in head]
    return (main or [frames for _, frames in threads] or [[]])[0]


@dataclass
class StackTaker:
    """Takes stacks of a run, whose disk is slow at times: call it in a thread with a bound."""

    files: RunDir
    attempt: int
    _spy: str | None = field(default_factory=lambda: shutil.which("py-spy"))

    def take(self, targets: Sequence[Target]) -> dict[int, Stack]:
        """Take the stacks of these ranks; a rank without any has no entry."""
        taken = self._ask_trainers([t for t in targets if t.answers])
        for target in targets:
            if target.rank not in taken:
                taken[target.rank] = self._poll(target)
        return taken

    def traces(self) -> list[str]:
        """Name the flight recorder's dumps, of all attempts of the run."""
        try:
            names = sorted(os.listdir(self.files.debug))
        except OSError:
            return []
        return [f"{self.files.debug}/{name}" for name in names if name.startswith(TRACES)]

    def _ask_trainers(self, targets: Sequence[Target]) -> dict[int, Stack]:
        """Signal all of them, then wait for the answers of all."""
        asked: dict[int, tuple[str, int]] = {}
        for target in targets:
            path = self.files.stack(self.attempt, target.rank)
            if self._can_answer(target.pid):
                asked[target.rank] = (path, size_bytes(path))
                with suppress(ProcessLookupError):  # it may have ended meanwhile
                    os.kill(target.pid, signal.SIGUSR2)
        return _collect(asked)

    @staticmethod
    def _can_answer(pid: int) -> bool:
        """SIGUSR2 ends a process that has no handler; a stopped one answers when it goes on."""
        return procfs.state(pid) not in (None, "T", "t") and procfs.catches(pid, signal.SIGUSR2)

    def _poll(self, target: Target) -> Stack:
        pythons = [pid for pid in (target.pids or (target.pid,)) if procfs.is_python(pid)]
        dumps = [(pid, dump) for pid in pythons[:_MAX_SPIED] if (dump := self._spy_on(pid))]
        text = "".join(dump for _, dump in dumps)
        text += "".join(_head(pid) + procfs.describe(pid) for pid in target.pids or (target.pid,))
        path = f"{self.files.debug}/proc-{self.attempt}-rank-{target.rank}.txt"
        written = path if _write(path, text) else None
        frames = parse_py_spy(dumps[0][1]) if dumps else []
        return describe(frames, written) if frames else Stack(_kernel(target.pid), written)

    def _spy_on(self, pid: int) -> str:
        """Ask py-spy, which reads the memory of the process and does not stop it."""
        if self._spy is None:
            return ""
        command = [self._spy, "dump", "--full-filenames", "--nonblocking", "--pid", str(pid)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_SPY_LIMIT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        # Before the threads it has the command line with its secrets.
        threads = "".join(done.stdout.partition("\nThread ")[1:])
        return f"{_head(pid)}{threads}" if done.returncode == 0 else ""


def _head(pid: int) -> str:
    """Say which process it is, without the secrets of its command line."""
    return f"process {pid}: {' '.join(secrets.hide_words(procfs.command_line(pid)))}\n"


def _kernel(pid: int) -> str | None:
    """Return where the kernel keeps a process; where a stopped one was says nothing."""
    name = None if procfs.state(pid) in ("T", "t") else procfs.waits_in(pid)
    return f"the kernel's {name}" if name else None


def _collect(asked: Mapping[int, tuple[str, int]]) -> dict[int, Stack]:
    """Wait until each file has grown and rests; who wrote nothing in time has no entry."""
    taken: dict[int, Stack] = {}
    sizes = {rank: before for rank, (_, before) in asked.items()}
    deadline_s = time.monotonic() + _ANSWER_S
    while len(taken) < len(asked) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
        for rank, (path, before) in asked.items():
            size = size_bytes(path)
            if rank not in taken and before < size == sizes[rank]:
                text = plain.tail(path, _MAX_BYTES, before)
                taken[rank] = describe(parse_faulthandler(text), path)
            sizes[rank] = size
    return taken


def _write(path: str, text: str) -> bool:
    try:
        with open(path, "w", encoding="utf-8", opener=plain.plain_opener) as file:
            file.write(text)
    except OSError:
        return False
    return True


def ask_for_trace(pipe_prefix: str, ranks: Sequence[int]) -> list[int]:
    """Ask torch's flight recorder of these ranks for a dump; the ranks that were asked.

    Torch makes a pipe `<TORCH_NCCL_DEBUG_INFO_PIPE_FILE><rank>.pipe` and dumps when anything is
    written to it (ProcessGroupNCCL, `DumpPipe`); it polls about once a second.
    """
    asked = []
    for rank in ranks:
        try:
            fd = os.open(f"{pipe_prefix}{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue  # no such pipe, or no reader of it
        try:
            os.write(fd, b"1")
            asked.append(rank)
        except OSError:
            pass
        finally:
            os.close(fd)
    return asked
