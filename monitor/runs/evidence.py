"""What lies beside the events: the ends of the ranks' logs, the last lines of large files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from monitor import events as event_log
from monitor.plain import open_plain
from monitor.runs.history import integer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import BinaryIO

    from monitor.events import Event

_LOG_BYTES = 2**14  # of a rank's log: what it said last
_TAIL_BYTES = 2**16  # of the metrics of an attempt: the last lines are enough


class RankLogs:
    """The end of what a rank wrote in an attempt.

    All attempts write to one file a rank; `log_offset` of the event `rank_up` tells them apart.
    Without it the last attempt of a rank has the end of the file, and an earlier one nothing.
    """

    def __init__(self, run_dir: str, events: Sequence[Event]) -> None:
        self._run_dir = run_dir
        self._begins: dict[int, dict[int, int | None]] = {}
        self._known: dict[tuple[int, int], str] = {}
        for event in events:
            rank = integer(event.get("rank"))
            if event.get("event") == "rank_up" and rank is not None:
                attempt = integer(event.get("attempt")) or 1
                self._begins.setdefault(rank, {})[attempt] = integer(event.get("log_offset"))

    def path(self, rank: int) -> str:
        """Where a rank's log lies."""
        return os.path.join(self._run_dir, "logs", f"rank-{rank}.log")  # noqa: PTH118 - start time

    def end(self, attempt: int, rank: int) -> str:
        """Give the last 16 KiB of it; empty where there is nothing to read."""
        key = (attempt, rank)
        if key not in self._known:
            self._known[key] = self._read(attempt, rank)
        return self._known[key]

    def _read(self, attempt: int, rank: int) -> str:
        begins = self._begins.get(rank, {})
        later = [begins[number] for number in sorted(begins) if number > attempt]
        begin, stop = begins.get(attempt) or 0, next((b for b in later if b is not None), None)
        if later and stop is None:
            return ""
        try:
            with open_plain(self.path(rank)) as file:
                size = os.fstat(file.fileno()).st_size
                stop = size if stop is None else min(stop, size)
                file.seek(max(begin, stop - _LOG_BYTES, 0))
                return file.read(max(0, stop - file.tell())).decode(errors="replace")
        except OSError:
            return ""


def last_metrics(path: str, attempts: Sequence[int]) -> tuple[list[Event], int]:
    """Read the last lines of each attempt's metrics, however large the file is.

    Lines stand in the order of the attempts, so that an end is found by halving.

    Returns:
        The lines, oldest first, and how many could not be read.

    """
    try:
        with open_plain(path) as file:
            return _last_metrics(file, attempts)
    except OSError:
        return [], 0  # a run that ended before its first step has none


def _last_metrics(file: BinaryIO, attempts: Sequence[int]) -> tuple[list[Event], int]:
    size = os.fstat(file.fileno()).st_size
    found: list[Event] = []
    num_bad = begin = 0
    for attempt in [*sorted(attempts)[:-1], None]:
        end = size if attempt is None else _end_of(file, attempt, size)
        lines, num = event_log.read(_whole_lines(file, max(begin, end - _TAIL_BYTES), end))
        found += lines
        num_bad += num
        begin = max(begin, end)
    return found, num_bad


def _end_of(file: BinaryIO, attempt: int, size: int) -> int:
    """Find where the lines of later attempts begin."""

    def is_later(offset: int) -> bool:
        start, number = _attempt_at(file, offset)
        return start >= size or number > attempt

    low = _bisected(is_later, size)
    return _attempt_at(file, low)[0]


def _bisected(is_later: Callable[[int], bool], size: int) -> int:
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        if is_later(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _attempt_at(file: BinaryIO, offset: int) -> tuple[int, int]:
    """Give where the first line that begins at `offset` or later begins, and its attempt.

    Lines without an attempt, or torn ones, count to the one after them; after the last is no more.
    """
    file.seek(max(0, offset - 1))
    if offset:
        file.readline()
    while True:
        start = file.tell()
        line = file.readline()
        if not line:
            return start, 2**62
        for event in event_log.read(line)[0]:
            number = integer(event.get("attempt"))
            if number is not None:
                return start, number


def _whole_lines(file: BinaryIO, begin: int, end: int) -> bytes:
    """Read from the first line that begins at `begin` or later."""
    file.seek(max(0, begin - 1))
    if begin:
        file.readline()
    return file.read(max(0, end - file.tell()))
