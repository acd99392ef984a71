"""`python -m monitor report FILES…`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from monitor.errors import UserError
from monitor.report.report import report

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def add_options(parser: ArgumentParser) -> None:
    """Add its options."""
    parser.add_argument(
        "files", nargs="+", metavar="FILES", help="run directories, logs, directories of logs"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document, for programs")
    parser.add_argument("--full", action="store_true", help="every GPU, with all that is known")
    parser.add_argument(
        "--co2", type=float, metavar="G_PER_KWH", help="tell CO2 as well, at so many g a kWh"
    )


def run(options: Namespace) -> int:
    """Print the report; 0.

    Raises:
        UserError: a file cannot be read, there is none, or `--co2` is no number of grams.

    """
    if options.co2 is not None and not 0 <= options.co2 < math.inf:
        raise UserError(
            "--co2 must be a number of grams a kWh, 0 or more",
            f"{options.co2:g}",
            "30 to 800 is what power grids have",
        )
    return report(options.files, as_json=options.json, full=options.full, co2_g_per_kwh=options.co2)
