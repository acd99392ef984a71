"""`python -m monitor watch [PATH…]`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from monitor.live.session import watch

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def add_options(parser: ArgumentParser) -> None:
    """Add its options."""
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="a run directory, a directory of logs, or logs (default: the newest run in $DDP_OUT,"
        " else in ./out)",
    )


def run(options: Namespace) -> int:
    """Show it until the user quits.

    Raises:
        UserError: there is nothing to watch.

    """
    return watch(options.paths, os.environ)
