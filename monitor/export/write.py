"""A file that is there whole or not at all: written beside and renamed."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from monitor.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

STDOUT = "-"


@contextmanager
def beside(out: str, *, mode: int | None = None) -> Iterator[str]:
    """Give a path in the directory of `out`, to be written; then it takes the place of `out`.

    Where the block fails, nothing is left behind and `out` stays as it was.

    Args:
        out: a link is followed.
        mode: permissions, whatever the umask; None: as the umask has it.

    Raises:
        UserError: there is no such directory, or it may not be written to.

    """
    target = os.path.realpath(out)
    folder, name = os.path.split(target)
    # hidden, and not ending in .prom: node_exporter would read it half written
    # with the node's name: on another one, a process may have the same number
    path = os.path.join(folder, f".{name}.{os.uname().nodename}.{os.getpid()}.new")  # noqa: PTH118
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        if mode is not None:
            os.chmod(path, mode)  # noqa: PTH101
    except OSError as error:
        raise _cannot(out, error) from error
    try:
        yield path
        os.replace(path, target)  # noqa: PTH105
    except OSError as error:
        raise _cannot(out, error) from error
    finally:
        with suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108


def check(out: str, inputs: Sequence[str]) -> None:
    """Refuse what must not be replaced.

    Raises:
        UserError: it is there and no regular file, or one of the inputs.

    """
    if out == STDOUT:
        return
    with suppress(OSError):
        if not stat.S_ISREG(os.stat(out).st_mode):  # noqa: PTH116
            raise UserError(
                "--out must be a regular file, or new",
                f"{out}, which is none",
                "name a file in a directory, or - for the standard output",
            )
    if os.path.realpath(out) in map(os.path.realpath, inputs):
        raise UserError(
            "--out must not be a file that is read", f"{out} among the inputs", "name another file"
        )


def text(out: str, content: str, *, mode: int | None = None) -> None:
    """Write text to a file, whole, or to the standard output.

    Raises:
        UserError: it cannot be written.

    """
    if out == STDOUT:
        sys.stdout.write(content)
        sys.stdout.flush()
        return
    with beside(out, mode=mode) as path, open(path, "w", encoding="utf-8", newline="") as file:  # noqa: PTH123
        file.write(content)


def copy_to_stdout(path: str) -> None:
    """Copy a file, of any size, to the standard output."""
    with open(path, "rb") as file:  # noqa: PTH123
        shutil.copyfileobj(file, sys.stdout.buffer)
    sys.stdout.flush()


def _cannot(out: str, error: OSError) -> UserError:
    return UserError(
        "--out must be a file that can be written",
        f"{out}: {error.strerror or error}",
        "name a place that is there, has room, and that you may write to",
    )
