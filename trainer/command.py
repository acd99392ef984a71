"""What the small commands beside the trainer share: options, and one line for wrong input."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rundir import codes
from trainer import __version__
from trainer.errors import UserError, missing_package, unusable_path
from trainer.text import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Parser(argparse.ArgumentParser):
    """argparse, with our exit code, one line, and --version."""

    def __init__(self, prog: str, description: str | None) -> None:
        super().__init__(prog=prog, description=description)
        self.add_argument("--version", action="version", version=f"ddp {__version__}")

    def error(self, message: str) -> NoReturn:
        """Raise UserError."""
        raise UserError(
            "command line",
            rule="be as --help says",
            found=message,
            remedy=f"see {self.prog} --help",
        )


def path(text: str) -> Path:
    """An argument that is a path; an unset shell variable is none, and Path("") would be "."."""
    if not text:
        raise argparse.ArgumentTypeError("an empty path")
    return Path(text)


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What writing to the standard output fails with, where it is a file."""
CHECKPOINT_HELP = "a checkpoint, a run directory (its last one), or its best one: RUN/best"


def check_target(target: Path, name: str, *, may_overwrite: bool | None) -> None:
    """Raise UserError, in which the file is called `name`, unless it can be written anew.

    A folder never can; nor can a file where `may_overwrite` is None, whatever --force says.
    """
    if not target.parent.is_dir():
        raise UserError(
            name, rule="be in a directory that exists", found="none", remedy="create it"
        )
    if target.is_dir() or (target.exists() and not may_overwrite):
        raise UserError(
            name,
            rule="be a file that is not there yet",
            found="one",
            remedy="name another"
            if target.is_dir() or may_overwrite is None
            else "name another, or give --force",
        )


def follow_umask(file: Path) -> None:
    """Give a file that a library wrote the permissions that the user gives new files."""
    mask = os.umask(0)
    os.umask(mask)
    file.chmod(0o666 & ~mask)


def run(main: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    """Return main's exit code, or 64 after one line if the input is wrong."""
    try:
        code = main(argv)
        if sys.stdout is not None:  # as with `>&-`
            sys.stdout.flush()
    except UserError as error:
        warn(error)
        return codes.USAGE
    except ModuleNotFoundError as error:
        warn(missing_package(error, sys.executable))
        return codes.USAGE
    except KeyboardInterrupt:  # a file half-written is removed on the way here
        warn("stopped by Ctrl-C")
        return 128 + signal.SIGINT
    except BrokenPipeError:
        _drop_output()
        return 0  # the reader of our output has seen enough
    except OSError as error:
        wrong = unusable_path(error) or _full_output(error)
        if wrong is None:
            raise
        warn(wrong)
        return codes.USAGE
    return code


def _full_output(error: OSError) -> UserError | None:
    """Translate the error of a standard output on a full disk, and write no more to it; else None.

    That of a file has its name.
    """
    if error.filename is not None or error.errno not in _NO_ROOM:
        return None
    _drop_output()
    return UserError(
        "standard output", rule="have room", found=error.strerror, remedy="write it elsewhere"
    )


def _drop_output() -> None:
    """Leave nothing for the interpreter to write, and to fail at, when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
