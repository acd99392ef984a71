"""Text output: streams that may be full.

What a full disk cannot take is lost, and the run is not.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from collections.abc import Iterable


class LossyStream:
    """A stream in all but this: what cannot be written is lost without an error.

    Slurm's file of the job lies on a disk with a quota like any other. A closed pipe
    is an error as ever.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write what can be written; all of it counts as written."""
        try:
            self._stream.write(text)
        except BrokenPipeError:
            raise
        except OSError:
            pass
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write them one by one."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Pass on what can be."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            raise
        except OSError:
            pass

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- whatever the stream has
        return getattr(self._stream, name)


def lose_what_cannot_be_written() -> None:
    """From now on no error is raised where stdout or stderr are closed, or on a full disk."""
    for name in ("stdout", "stderr"):
        # None: it was closed before Python began; its number must not become another file's.
        stream = getattr(sys, name) or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
        setattr(sys, name, cast("TextIO", LossyStream(stream)))


def warn(text: object) -> None:
    """Write one line to the log."""
    print(f"trainer: {text}", file=sys.stderr, flush=True)


def flush_what_can_be() -> None:
    """Pass on what was printed, before an end that does not wait; no error changes how it ends."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, AttributeError):  # AttributeError: there is none
            stream.flush()


def or_mount(remedy: str) -> str:
    """Add to what to do about a path that is not there: in our image it may be the host's."""
    if "DDP_HOME" not in os.environ:
        return remedy
    mounts = "sbatch --container-mounts, DDP_MOUNTS beside DDP_IMAGE, or docker run -v"
    return f"{remedy}, or mount it, as this is a container ({mounts})"
