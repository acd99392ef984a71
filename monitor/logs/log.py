"""A log in memory: its rows as columns, and what its `##` lines say."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from monitor.logs.log_events import LogEvent, Place

INSTANCE = "some are of a MIG instance, not of the whole GPU"
FOREIGN = "no header of nvidia-smi dmon stands above them"
"""Hints to rows that cannot be read; another is `parser.NARROW`."""


@dataclass(frozen=True)
class Log:
    """What one file holds, in the order of its rows.

    `time_s` counts from 1970, in UTC where the log states its offset, else in local time; NO_TIME
    where rows carry no time. Where they carry no date (`dated` is False) it counts from the
    midnight before the first row. `read_log` lets it never go back. `gpu` is -1 where a
    node has none. `values` has the log's own columns by name, in its units; a NaN is a reading that
    does not exist.
    """

    path: str
    places: tuple[Place, ...]
    place: NDArray[np.int16]
    """Of each row, in `places`."""
    time_s: NDArray[np.int64]
    gpu: NDArray[np.int32]
    values: dict[str, NDArray[np.floating]]
    dated: bool
    facts: dict[str, str]
    """Their last values in the log."""
    changes: tuple[tuple[str, str], ...]
    """Facts of the rows below them, in their order."""
    num_changes: NDArray[np.int32]
    """Of each row, how many of them stand above it."""
    events: tuple[LogEvent, ...]
    """The events of the log, in its order."""
    num_unreadable: int
    """Rows that cannot be read, and events."""
    torn: bool
    """The last line has no end: it is still growing, or its writer was killed."""
    hints: tuple[str, ...] = ()
    """In words, why some rows cannot be read."""
    num_lost: int = 0
    """Samples that could not be written, by the log's own lines."""
    shift_s: NDArray[np.int64] | None = None
    """How much later a row's `time_s` is than what is written; None: nowhere."""

    @property
    def written_s(self) -> NDArray[np.int64]:
        """The times as they are written, which are those to show."""
        return self.time_s if self.shift_s is None else self.time_s - self.shift_s

    def reported(self, fact: str) -> list[tuple[int, str]]:
        """Give a fact's values, each with how many changes stand above its rows."""
        return [(n, value) for n, (key, value) in enumerate(self.changes, 1) if key == fact]

    def rows_of(self, place: Place) -> NDArray[np.bool_]:
        """Return which rows are a place's."""
        if self.places == (place,):
            return np.ones(self.num_rows, np.bool_)
        code = self.places.index(place) if place in self.places else -1
        rows: NDArray[np.bool_] = self.place == code
        return rows

    def shifted(self, rows: NDArray[np.bool_], by_s: NDArray[np.int64]) -> Log:
        """Give this log with some rows later, each by its own shift."""
        shift_s = np.zeros(self.num_rows, np.int64) if self.shift_s is None else self.shift_s.copy()
        shift_s[rows] = by_s
        return replace(self, time_s=self.written_s + shift_s, shift_s=shift_s)

    @property
    def num_rows(self) -> int:
        """How many rows could be read."""
        return len(self.gpu)

    @property
    def is_foreign(self) -> bool:
        """Whether it is no log of dmon or ours at all, as far as can be seen."""
        return FOREIGN in self.hints
