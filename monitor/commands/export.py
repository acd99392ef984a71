"""`python -m monitor export --format FORMAT --out FILE PATHS…`."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

from monitor.export.export import FORMATS, Settings, export

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def add_options(parser: ArgumentParser) -> None:
    """Add its options."""
    parser.add_argument(
        "paths", nargs="+", metavar="PATHS", help="logs, run directories, or directories of them"
    )
    parser.add_argument(
        "--format",
        required=True,
        choices=FORMATS,
        dest="form",
        help="prometheus: text 0.0.4, for node_exporter's textfile collector;"
        " openmetrics: OpenMetrics 1.0; the others: every row of the logs",
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="written whole; -: stdout")
    parser.add_argument(
        "--follow", type=float, metavar="S", help="metrics: write anew every S seconds"
    )
    parser.add_argument(
        "--max-age", type=float, metavar="S", help="metrics: leave out what is older (300)"
    )


def run(options: Namespace) -> int:
    """Write the export; 0.

    Raises:
        UserError: an input cannot be read, or the file cannot be written.

    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))  # half a file goes
    return export(
        Settings(
            form=options.form,
            out=options.out,
            paths=tuple(options.paths),
            follow_s=options.follow,
            max_age_s=options.max_age,
        )
    )
