"""`python -m monitor why RUN_DIR`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitor.runs.why import why

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def add_options(parser: ArgumentParser) -> None:
    """Add its options."""
    parser.add_argument("run_dir", metavar="RUN_DIR", help="such as out/slurm-123")
    parser.add_argument("--json", action="store_true", help="one JSON document, for programs")


def run(options: Namespace) -> int:
    """Print why it ended; 0.

    Raises:
        UserError: the directory is none of a run.

    """
    return why(options.run_dir, as_json=options.json)
