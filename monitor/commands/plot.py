"""`python -m monitor plot PATHS… --out FILE.png|.svg`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitor.plot.plot import plot

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def add_options(parser: ArgumentParser) -> None:
    """Add its options."""
    parser.add_argument(
        "paths", nargs="+", metavar="PATHS", help="run directories, logs, or directories of logs"
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="a .png or .svg")
    parser.add_argument(
        "--show",
        metavar="NAMES",
        help="of util,power,memory,temp,throttle,cpu,hostmem (default: what there is of GPUs)",
    )
    parser.add_argument("--title", help="default: the run's name and size")
    parser.add_argument(
        "--width", type=float, default=180.0, metavar="MM", help="default 180; a column has 88"
    )


def run(options: Namespace) -> int:
    """Draw, and print the file's name; 0.

    Raises:
        UserError: the input is wrong, or there is nothing to show.

    """
    return plot(
        options.paths,
        options.out,
        show=options.show,
        title=options.title,
        width_mm=options.width,
    )
