"""`python -m monitor report`: what jobs made of their GPUs, for people or for programs."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from monitor.errors import UserError
from monitor.logs import aggregates, stats
from monitor.logs import files as logfiles
from monitor.report.document import RULES, document
from rundir.text import counted, printable

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

    from monitor.logs.aggregates import File
    from monitor.logs.stats import Job

_WIDTH = 132  # of a report that goes into a file
_MAX_NOTES = 5


def add_options(parser: ArgumentParser) -> None:
    """Add its options."""
    parser.add_argument(
        "files", nargs="+", metavar="FILES", help="run directories, logs, directories of logs"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document, for programs")
    parser.add_argument("--full", action="store_true", help="every GPU, with all that is known")
    parser.add_argument(
        "--co2", type=float, metavar="G_PER_KWH", help="show CO2 as well, at so many g a kWh"
    )


def run(options: Namespace) -> int:
    """Print what some logs amount to; 0."""
    if options.co2 is not None and not 0 <= options.co2 < math.inf:
        raise UserError(
            "--co2 must be a number of grams a kWh, 0 or more",
            f"{options.co2:g}",
            "30 to 800 is what power grids have",
        )
    logs = logfiles.find(options.files)
    if not logs:
        raise UserError(
            "a run directory must have .gutil logs beside it",
            f"none for {', '.join(options.files)}",
            "copy them there, or name them",
        )
    nodes, files = aggregates.count(logs)
    jobs = stats.join(nodes)
    if options.json:
        print(json.dumps(document(jobs, files, options.co2), indent=2))
    else:
        _print(jobs, files, options.co2, full=options.full)
    return 0


def _print(
    jobs: Sequence[Job], files: Sequence[File], co2_g_per_kwh: float | None, *, full: bool
) -> None:
    from rich.console import Console  # noqa: PLC0415 - `--json` does not need rich

    from monitor.report.tables import WIDE, tables  # noqa: PLC0415

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH)
    with console.capture() as shown:  # where nobody reads it rich would exit with code 1
        for part in tables(jobs, co2_g_per_kwh, wide=console.width >= WIDE, full=full):
            console.print(part)
        if any(job.gpus for job in jobs):
            rules = f"busy: {RULES['busy']}; energy: {RULES['energy']}; {RULES['gaps']}"
            console.print()
            console.print(rules, style="dim", markup=False)
        for note in _notes(files, full=full):
            console.print(note, style="yellow", markup=False, soft_wrap=True)
    print(shown.get(), end="")


def _notes(files: Sequence[File], *, full: bool) -> list[str]:
    notes = [note for note in map(_note, files) if note]
    hidden = 0 if full else len(notes[_MAX_NOTES:])
    more = f"and {counted(hidden, 'more file')} like these: --full names all"
    return [*notes[:_MAX_NOTES], more] if hidden else notes


def _note(file: File) -> str | None:
    """Return in one line what of a file was not read; None if all of it was."""
    parts = []
    if file.num_unreadable:
        why = f" ({'; '.join(file.hints)})" if file.hints else ""
        parts.append(f"{counted(file.num_unreadable, 'row')} could not be read{why}")
    if file.num_lost:
        parts.append(f"{counted(file.num_lost, 'sample')} could not be written by its recorder")
    if file.torn:
        parts.append("the last line has no end and was left out")
    if not file.num_rows:
        parts.append("no samples")
    return f"{printable(file.path)}: {'; '.join(parts)}" if parts else None
