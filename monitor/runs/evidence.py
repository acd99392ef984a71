"""A run's files: its events, the last lines of its metrics, and the ends of its ranks' logs."""

from __future__ import annotations

import os
from bisect import bisect_left
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from monitor.errors import UserError
from monitor.logs import files
from monitor.runs.history import integer
from rundir import events as event_log
from rundir import plain
from rundir.failure import words
from rundir.paths import RunDir

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import BinaryIO

    from rundir.events import Event

_TAIL_BYTES = 2**16  # of the metrics of an attempt: the last lines are enough


@dataclass(frozen=True, slots=True)
class Run:
    """What a run directory holds."""

    path: str
    events: Sequence[Event]
    metrics: Sequence[Event]
    """The last lines of each attempt, oldest first."""
    num_unreadable: int
    """Lines of both that could not be read."""
    logs: RankLogs


def load(run_dir: str) -> Run:
    """Read a run directory.

    Raises:
        UserError: there are no events, or they are no text.

    """
    try:
        data = event_log.read_run(run_dir)
    except OSError as error:
        raise no_run(run_dir, error) from error
    found = files.no_text(data)
    if found is not None:
        raise UserError(
            "events.jsonl must be UTF-8 text", f"{found} in {run_dir}", "name another run"
        )
    events, num_bad = event_log.read(data)
    if not events:  # as after a full disk
        raise UserError(
            "a run directory must hold a run's events",
            f"none in events.jsonl of {run_dir}",
            "name the directory of a run that was started",
        )
    numbers = {integer(event.get("attempt")) or 1 for event in events}
    metrics, num_bad_metrics = last_metrics(RunDir(run_dir).metrics, sorted(numbers))
    return Run(run_dir, events, metrics, num_bad + num_bad_metrics, RankLogs(run_dir, events))


def no_run(run_dir: str, error: OSError) -> UserError:
    """Say that a directory is none of a run."""
    return UserError(
        "a run directory must hold events.jsonl",
        f"{error.strerror} in {run_dir}",
        "name the directory of a run, such as out/slurm-123",
    )


class RankLogs:
    """The end of what a rank wrote in an attempt.

    All attempts write to one file a rank; `log_offset` of the event `rank_up` tells them apart.
    Without it the last attempt of a rank has the end of the file, and an earlier one nothing.
    """

    def __init__(self, run_dir: str, events: Sequence[Event]) -> None:
        self._files = RunDir(run_dir)
        self._begins: dict[int, dict[int, int | None]] = {}
        self.end = cache(self._read)
        """Gives `words.log_end` of (attempt, rank); empty where there is nothing to read."""
        for event in events:
            rank = integer(event.get("rank"))
            if event.get("event") == "rank_up" and rank is not None:
                attempt = integer(event.get("attempt")) or 1
                self._begins.setdefault(rank, {})[attempt] = integer(event.get("log_offset"))

    def path(self, rank: int) -> str:
        """Where a rank's log lies."""
        return self._files.rank_log(rank)

    def _read(self, attempt: int, rank: int) -> str:
        begins = self._begins.get(rank, {})
        begin, later = begins.get(attempt) or 0, [begins[n] for n in sorted(begins) if n > attempt]
        stop = next((offset for offset in later if offset is not None), None)
        if later and stop is None:
            return ""  # it is unknown where the later attempts begin
        return words.log_end(plain.tail(self.path(rank), words.LOG_BYTES, begin, stop))


def last_metrics(path: str, attempts: Sequence[int]) -> tuple[list[Event], int]:
    """Read the last lines of each attempt's metrics, however large the file is.

    Lines stand in the order of the attempts, so that an end is found by halving.

    Returns:
        The lines, oldest first, and how many could not be read.

    """
    try:
        with plain.open_plain(path) as file:
            return _last_metrics(file, attempts)
    except OSError:
        return [], 0  # a run that ended before its first step has none


def _last_metrics(file: BinaryIO, attempts: Sequence[int]) -> tuple[list[Event], int]:
    size = os.fstat(file.fileno()).st_size
    found: list[Event] = []
    num_bad = begin = 0
    for attempt in [*sorted(attempts)[:-1], None]:
        end = size if attempt is None else _end_of(file, attempt, size)
        _seek_line(file, max(begin, end - _TAIL_BYTES))
        lines, num = event_log.read(file.read(max(0, end - file.tell())))
        found += lines
        num_bad += num
        begin = max(begin, end)
    return found, num_bad


def _end_of(file: BinaryIO, attempt: int, size: int) -> int:
    """Find where the lines of later attempts begin."""

    def is_later(offset: int) -> bool:
        start, number = _attempt_at(file, offset)
        return start >= size or number > attempt

    low = bisect_left(range(size), True, key=is_later)
    return _attempt_at(file, low)[0]


def _attempt_at(file: BinaryIO, offset: int) -> tuple[int, int]:
    """Give where the first line that begins at `offset` or later begins, and its attempt.

    Lines without an attempt, or torn ones, count to the one after them; after the last is no more.
    """
    _seek_line(file, offset)
    while True:
        start = file.tell()
        line = file.readline()
        if not line:
            return start, 2**62
        for event in event_log.read(line)[0]:
            number = integer(event.get("attempt"))
            if number is not None:
                return start, number


def _seek_line(file: BinaryIO, offset: int) -> None:
    """Go to the first line that begins at `offset` or later."""
    file.seek(max(0, offset - 1))
    if offset:
        file.readline()
