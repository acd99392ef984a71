"""`python -m monitor compose RUN_DIR`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from monitor.errors import emit
from monitor.runs.record import compose_file

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def add_options(parser: ArgumentParser) -> None:
    """Add its options."""
    parser.add_argument("run_dir", metavar="RUN_DIR", help="such as out/slurm-123")


def run(options: Namespace) -> int:
    """Write run.json and print its path; say which ranks were slow, and what was seen there; 0."""
    path = compose_file(options.run_dir)
    print(path)
    _report_slow(path)
    return 0


def _report_slow(path: str) -> None:
    """Add to the trainer's own words, where the monitor saw something."""
    from monitor.runs.render import slow_words  # noqa: PLC0415 - start time

    record = json.loads(Path(path).read_text(encoding="utf-8"))
    for slow in record["attempts"][-1]["slow_ranks"]:
        if slow["seen"]:
            emit(slow_words(slow))
