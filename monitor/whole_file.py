"""A file that is there whole or not at all: written beside and renamed."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from monitor.errors import UserError
from rundir.plain import plain_opener

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

STDOUT = "-"


@contextmanager
def replacing(path: str, *, mode: int | None = None) -> Iterator[str]:
    """Give a path in the directory of a file, to be written; then it takes the file's place.

    Where the block fails, nothing is left behind and the file stays as it was.

    Args:
        path: a link is not followed, and is replaced itself: who may write there may have made it.
        mode: permissions, whatever the umask; None: as the umask has it.

    """
    folder, name = os.path.split(path)
    # hidden, and not ending in .prom: node_exporter would read it half written
    # with the node's name: on another one, a process may have the same number
    new = os.path.join(folder, f".{name}.{os.uname().nodename}.{os.getpid()}.new")
    os.close(plain_opener(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
    try:
        if mode is not None:
            os.chmod(new, mode)
        yield new
        os.replace(new, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(new)


@contextmanager
def beside(out: str, *, mode: int | None = None) -> Iterator[str]:
    """Do as `replacing` for `--out`, where a link leads; UserError where it cannot be written."""
    try:
        with replacing(os.path.realpath(out), mode=mode) as path:
            yield path
    except OSError as error:
        raise UserError(
            "--out must be a file that can be written",
            f"{out}: {error.strerror or error}",
            "name a place that is there, has room, and that you may write to",
        ) from error


def suffix_of(out: str, suffixes: Sequence[str]) -> str:
    """Give the suffix of `--out`; UserError if it is none of these, or no directory is there."""
    suffix = Path(out).suffix.lower()
    if suffix not in suffixes:
        raise UserError(
            f"--out must end in {' or '.join(suffixes)}",
            out,
            f"write for example --out run{suffixes[0]}",
        )
    if not Path(out).parent.is_dir():
        raise UserError(
            "the directory of --out must be there",
            f"none at {Path(out).parent}",
            "make it first, or name another",
        )
    return suffix


def check(out: str, inputs: Sequence[str]) -> None:
    """Raise UserError for what must not be replaced: no regular file, or one of the inputs."""
    if out == STDOUT:
        if sys.stdout is None:  # as with `>&-`
            raise UserError("--out - must have a standard output", "it closed", "name a file")
        return
    with suppress(OSError):
        if not stat.S_ISREG(os.stat(out).st_mode):
            raise UserError(
                "--out must be a regular file, or new",
                f"{out}, which is none",
                "name a file in a directory, or - for the standard output",
            )
    if os.path.realpath(out) in map(os.path.realpath, inputs):
        raise UserError(
            "--out must not be a file that is read", f"{out} among the inputs", "name another file"
        )


def text(out: str, content: str, *, mode: int) -> None:
    """Write text to a file, whole, or to the standard output."""
    if out == STDOUT:
        sys.stdout.write(content)
        sys.stdout.flush()
        return
    with beside(out, mode=mode) as path, open(path, "w", encoding="utf-8", newline="") as file:
        file.write(content)


def copy_to_stdout(path: str) -> None:
    """Copy a file, of any size, to the standard output."""
    with open(path, "rb") as file:
        shutil.copyfileobj(file, sys.stdout.buffer)
    sys.stdout.flush()
