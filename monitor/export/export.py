"""`python -m monitor export`: logs and runs for other programs, as metrics or as rows."""

from __future__ import annotations

import math
import os
import signal
import sys
import tempfile
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from monitor.errors import UserError, emit
from monitor.export import find
from monitor.logs import files
from monitor.whole_file import STDOUT, beside, check, copy_to_stdout, text
from rundir import paths as run_files
from rundir.text import counted

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

    from monitor.export.metrics import Collector

METRICS = ("prometheus", "openmetrics")
ROWS = ("csv", "parquet", "jsonl")
FORMATS = (*METRICS, *ROWS)
_SHORTEST_S, _LONGEST_S = 1.0, 86_400.0
_RUN_FILES = (run_files.EVENTS, run_files.METRICS, run_files.RECORD)
_READABLE = 0o644  # node_exporter is another user
_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


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
    """Write once, or again and again until SIGTERM; 0. Of wrong input nothing is left behind."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))  # half a file goes
    _check(options)
    logs = _files(options)
    if options.form in ROWS:
        _rows(logs, options)
        return 0
    from monitor.export.metrics import Collector  # noqa: PLC0415 - rows do not need it

    collector = Collector(options.paths, options.max_age)
    if options.follow is None:
        _metrics(collector, options)
    else:
        _follow(collector, options)
    return 0


def _check(options: Namespace) -> None:
    """Raise UserError where an option breaks its rule."""
    if options.form == "parquet" and options.out == STDOUT:
        raise UserError("--out must be a file for parquet", "-", "name one")
    for name, value in (("--follow", options.follow), ("--max-age", options.max_age)):
        if value is not None and options.form not in METRICS:
            raise UserError(
                f"{name} must go with metrics",
                f"--format {options.form}",
                f"leave it out, or choose {' or '.join(METRICS)}",
            )
    if options.follow is not None:
        if not _SHORTEST_S <= options.follow <= _LONGEST_S:
            raise UserError(
                f"--follow must lie between {_SHORTEST_S:g} and {_LONGEST_S:g} seconds",
                f"{options.follow:g}",
                "15 is what the recorder's samples allow",
            )
        if options.out == STDOUT:
            raise UserError("--follow must have a file to write anew", "-", "name one")
    if options.max_age is not None and not 0 < options.max_age < math.inf:
        raise UserError(
            "--max-age must be seconds, above 0",
            f"{options.max_age:g}",
            "leave it out, or give at least five intervals of the recorder",
        )


def _files(options: Namespace) -> list[str]:
    """Find the logs' files, for rows of all jobs of a run; UserError where one is `--out`."""
    logs, runs = find.find(options.paths)  # metrics are not of what was rotated away
    if options.form in ROWS:
        logs = [file for log in files.find(options.paths) for file in log]
    check(options.out, [*logs, *(f"{run}/{name}" for run in runs for name in _RUN_FILES)])
    return logs


def _metrics(collector: Collector, options: Namespace) -> None:
    metrics = collector.collect(time.time())
    is_plain = options.form == "prometheus"
    whole = metrics.prometheus() if is_plain else metrics.openmetrics()
    text(options.out, whole, mode=_READABLE)


def _follow(collector: Collector, options: Namespace) -> None:
    """Write again and again; at the end the file goes, since it would not stay true.

    Signals are waited for and never interrupt a write. What is wrong at first is the user's to
    mend; what goes wrong later is reported once, and tried again.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    _metrics(collector, options)
    is_failing = False
    deadline_s = time.monotonic() + options.follow
    while not signal.sigtimedwait(_ENDS, max(0.0, deadline_s - time.monotonic())):
        deadline_s = max(deadline_s + options.follow, time.monotonic())
        try:
            _metrics(collector, options)
            is_failing = False
        except UserError as error:
            if not is_failing:
                emit(str(error))
            is_failing = True
    with suppress(FileNotFoundError):
        os.unlink(os.path.realpath(options.out))


def _rows(paths: Sequence[str], options: Namespace) -> None:
    if not paths:
        raise UserError(
            "logs must be .gutil files",
            f"none for {' '.join(options.paths)}",
            "name logs, or the output directory of a job",
        )
    if options.out == STDOUT:
        with tempfile.TemporaryDirectory() as folder:
            target = f"{folder}/rows"
            _write(paths, options.form, target, folder)
            copy_to_stdout(target)
        return
    with beside(options.out) as target:
        _write(paths, options.form, target, os.path.dirname(target))


def _write(paths: Sequence[str], form: str, target: str, scratch: str) -> None:
    """Write rows, and report in a line a log what of it could not be read."""
    from monitor.export import rows  # noqa: PLC0415 - metrics do not need polars

    for path, num in rows.write(paths, form, target, scratch).items():
        emit(f"{path}: {counted(num, 'row')} could not be read, left out")
