"""`python -m monitor compose RUN_DIR`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitor.errors import UserError
from monitor.runs.record import compose_file

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def add_options(parser: ArgumentParser) -> None:
    """Tell what it takes."""
    parser.add_argument("run_dir", metavar="RUN_DIR", help="such as out/slurm-123")


def run(options: Namespace) -> int:
    """Write run.json and print its path; 0.

    Raises:
        UserError: there are no events, or the directory cannot be written to.

    """
    try:
        print(compose_file(options.run_dir))
    except OSError as error:
        raise UserError(
            f"run.json: must be writable; found {error.strerror} in {options.run_dir}:"
            " make room or name a directory that you may write to"
        ) from error
    return 0
