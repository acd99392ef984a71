"""`python -m monitor export`: logs and runs for other programs, as metrics or as rows."""

from __future__ import annotations

import math
import os
import signal
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monitor.errors import UserError, emit
from monitor.export import write
from monitor.export.write import STDOUT
from rundir.text import counted

if TYPE_CHECKING:
    from monitor.export.metrics import Collector
    from monitor.logs.log import Log

METRICS = ("prometheus", "openmetrics")
ROWS = ("csv", "parquet", "jsonl")
FORMATS = (*METRICS, *ROWS)
_SHORTEST_S, _LONGEST_S = 1.0, 86_400.0
_READABLE = 0o644  # node_exporter is another user
_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to export, and where to; checked where it is built."""

    form: str
    """One of `FORMATS`."""
    out: str
    """A file, or `-`."""
    paths: tuple[str, ...]
    follow_s: float | None = None
    """Write anew so often, until a signal ends it; None: once."""
    max_age_s: float | None = None
    """What has reported nothing for longer is left out of metrics; None: the usual limit."""

    def __post_init__(self) -> None:
        """Raise UserError where a value breaks its rule."""
        if self.form == "parquet" and self.out == STDOUT:
            raise UserError("--out must be a file for parquet", "-", "name one")
        for name, value in (("--follow", self.follow_s), ("--max-age", self.max_age_s)):
            if value is not None and self.form not in METRICS:
                raise UserError(
                    f"{name} must go with metrics",
                    f"--format {self.form}",
                    f"leave it out, or choose {' or '.join(METRICS)}",
                )
        if self.follow_s is not None:
            if not _SHORTEST_S <= self.follow_s <= _LONGEST_S:
                raise UserError(
                    f"--follow must lie between {_SHORTEST_S:g} and {_LONGEST_S:g} seconds",
                    f"{self.follow_s:g}",
                    "15 is what the recorder's samples allow",
                )
            if self.out == STDOUT:
                raise UserError("--follow must have a file to write anew", "-", "name one")
        if self.max_age_s is not None and not 0 < self.max_age_s < math.inf:
            raise UserError(
                "--max-age must be seconds, above 0",
                f"{self.max_age_s:g}",
                "leave it out, or give at least five intervals of the recorder",
            )


def export(settings: Settings) -> int:
    """Write once, or again and again until SIGTERM; 0.

    Raises:
        UserError: the input is wrong; nothing is left behind.

    """
    write.check(settings.out, settings.paths)
    if settings.form in ROWS:
        _rows(settings)
        return 0
    from monitor.export.metrics import Collector  # noqa: PLC0415 - rows do not need it

    collector = Collector(settings.paths, settings.max_age_s)
    if settings.follow_s is None:
        _metrics(collector, settings)
    else:
        _follow(collector, settings, settings.follow_s)
    return 0


def _metrics(collector: Collector, settings: Settings) -> None:
    metrics = collector.collect(time.time())
    is_plain = settings.form == "prometheus"
    text = metrics.prometheus() if is_plain else metrics.openmetrics()
    write.text(settings.out, text, mode=_READABLE)


def _follow(collector: Collector, settings: Settings, every_s: float) -> None:
    """Write again and again; at the end the file goes, since it would not stay true.

    Signals are waited for and never interrupt a write. What is wrong at first is the user's to
    mend; what goes wrong later is reported once, and tried again.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    _metrics(collector, settings)
    is_failing = False
    deadline_s = time.monotonic() + every_s
    while not signal.sigtimedwait(_ENDS, max(0.0, deadline_s - time.monotonic())):
        deadline_s = max(deadline_s + every_s, time.monotonic())
        try:
            _metrics(collector, settings)
            is_failing = False
        except UserError as error:
            if not is_failing:
                emit(str(error))
            is_failing = True
    with suppress(FileNotFoundError):
        os.unlink(os.path.realpath(settings.out))  # noqa: PTH108


def _rows(settings: Settings) -> None:
    from monitor.export import find  # noqa: PLC0415 - metrics do not need polars
    from monitor.export import rows as export_rows  # noqa: PLC0415
    from monitor.logs import files  # noqa: PLC0415

    found = find.find(settings.paths).logs
    paths = [file for log in files.find(found) for file in log]
    if not paths:
        raise UserError(
            "logs must be .gutil files",
            f"none for {' '.join(settings.paths)}",
            "name logs, or the output directory of a job",
        )
    if settings.out == STDOUT:
        with tempfile.TemporaryDirectory() as folder:
            target = f"{folder}/rows"
            export_rows.write(paths, settings.form, target, _note, folder)
            write.copy_to_stdout(target)
        return
    with write.beside(settings.out) as target:
        export_rows.write(paths, settings.form, target, _note, os.path.dirname(target))  # noqa: PTH120


def _note(log: Log) -> None:
    """Report in a line what of a log could not be read."""
    if log.num_unreadable:
        unread = counted(log.num_unreadable, "row")
        emit(f"{log.path}: {unread} could not be read, left out")
