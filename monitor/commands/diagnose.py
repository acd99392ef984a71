"""`python -m monitor diagnose PATHS…`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitor.analysis import thresholds
from monitor.errors import UserError
from monitor.report import findings

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def add_options(parser: ArgumentParser) -> None:
    """Add its options."""
    parser.epilog = (
        "exit status: 0 nothing worse than a hint, 3 a warning, 4 an error, 64 wrong input"
    )
    parser.add_argument(
        "paths", nargs="*", metavar="PATHS", help="run directories, logs, directories of logs"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document, for programs")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="settings",
        metavar="NAME=NUMBER",
        help="another threshold, such as idle_minutes=5; may be given several times",
    )
    parser.add_argument("--thresholds", metavar="FILE", help="a TOML file of such thresholds")
    parser.add_argument("--list-rules", action="store_true", help="rules, thresholds, defaults")


def run(options: Namespace) -> int:
    """Print findings; 0 nothing worse than a hint, 3 a warning, 4 an error.

    Raises:
        UserError: a path cannot be read or is missing, or a threshold is wrong.

    """
    chosen = thresholds.chosen(options.settings, options.thresholds)
    if options.list_rules:
        print("\n".join(findings.rule_list(chosen)))
        return 0
    if not options.paths:
        raise UserError(
            "diagnose must be given at least one path",
            "none",
            "name a run directory such as out/slurm-123, or logs",
        )
    return findings.report(options.paths, chosen, as_json=options.json)
