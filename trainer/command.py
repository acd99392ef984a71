"""What the small commands beside the trainer share: options, and one line for wrong input."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rundir import codes, output
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
        output.drop()
        return 0  # the reader of our output has seen enough
    except OSError as error:
        wrong = unusable_path(error) or _full_output(error)
        if wrong is None:
            raise
        warn(wrong)
        return codes.USAGE
    return code


def _full_output(error: OSError) -> UserError | None:
    """Translate the error of a full standard output, and write no more to it; any other: None."""
    if not output.is_full(error):
        return None
    output.drop()
    return UserError(
        "standard output", rule="have room", found=error.strerror, remedy="write it elsewhere"
    )
