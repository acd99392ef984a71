"""`python -m monitor html PATHS… --out FILE.html`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitor.page.html import write_page

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def add_options(parser: ArgumentParser) -> None:
    """Add its options."""
    parser.add_argument(
        "paths", nargs="+", metavar="PATHS", help="run directories, logs, or directories of logs"
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="an .html")
    parser.add_argument("--title", help="default: the run's name and size")


def run(options: Namespace) -> int:
    """Write the page, and print its name; 0.

    Raises:
        UserError: the input is wrong, or there is nothing to show.

    """
    return write_page(options.paths, options.out, options.title)
