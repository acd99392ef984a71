"""`python -m monitor compose RUN_DIR`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitor.errors import emit
from monitor.runs.record import compose_file
from monitor.runs.render import slow_words

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def add_options(parser: ArgumentParser) -> None:
    """Add its options."""
    parser.add_argument("run_dir", metavar="RUN_DIR", help="such as out/slurm-123")


def run(options: Namespace) -> int:
    """Write run.json and print its path; report the slow ranks of which the monitor saw why; 0."""
    path, made = compose_file(options.run_dir)
    print(path)
    for slow in made["attempts"][-1]["slow_ranks"]:
        if slow["seen"]:
            emit(slow_words(slow))
    return 0
