"""The last readings of one GPU of a node, or of a node that has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from monitor.logs.gutil import parse_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

CAPACITY = 240
"""Samples: an hour at 15 s, four minutes at 1 s."""

_ROOM = 320
"""So many have a place: the last ones move to the front when it is used up."""

_FIRST_ROOM = 64  # most views are open for a while only


class Track:
    """Readings by column, the oldest forgotten.

    Args:
        host: the node.
        gpu: its index there; None: the node has no GPU.
        job: None: the log states none.
        facts: the `##` lines of its log, kept up to date by its reader.

    """

    def __init__(
        self, host: str, gpu: int | None, job: str | None, facts: Mapping[str, str]
    ) -> None:
        self.host = host
        self.gpu = gpu
        self.job = job
        self.facts = facts
        self.num_samples = 0
        """All that ever came."""
        self.names: Mapping[str, int] = {}
        self._time_s = np.empty(0)
        self._values = np.empty((0, 0), np.float32)
        self._num = 0  # that have a place
        self._newest: list[float] = []

    def add(
        self, names: Mapping[str, int], time_s: NDArray[np.float64], values: NDArray[np.floating]
    ) -> None:
        """Take up samples, the newest last.

        Args:
            names: the number of each column. Where they are others than before, the log's writer
                began anew, and what was before is forgotten.
            time_s: (samples,) since 1970, NaN where rows carry none.
            values: (samples, columns), NaN where there is no reading.

        """
        if names is not self.names and names != self.names:
            self.num_samples = self._num = 0
            self._time_s, self._values = np.empty(0), np.empty((0, len(names)), np.float32)
        self.names = names
        time_s, values = time_s[-CAPACITY:], values[-CAPACITY:]
        end = self._make_room(len(time_s))
        self._time_s[self._num : end] = time_s
        self._values[self._num : end] = values
        self._num = end
        self.num_samples += len(time_s)
        self._newest = values[-1].tolist()

    def _make_room(self, num_more: int) -> int:
        """Grow, or forget the oldest; where the last of the new ones ends."""
        end = self._num + num_more
        if end > len(self._time_s):
            kept = self._num if end <= _ROOM else CAPACITY - num_more
            size = _FIRST_ROOM if end <= _FIRST_ROOM else _ROOM
            time_s, values = np.empty(size), np.empty((size, len(self.names)), np.float32)
            time_s[:kept] = self._time_s[self._num - kept : self._num]
            values[:kept] = self._values[self._num - kept : self._num]
            self._time_s, self._values, self._num = time_s, values, kept
            end = kept + num_more
        return end

    def last(self, name: str) -> float | None:
        """Give the newest reading of a column; None if there is none."""
        column = self.names.get(name)
        if column is None or not self._newest:
            return None
        value = self._newest[column]
        return None if value != value else value  # noqa: PLR0124 - a NaN

    def column(self, name: str, num: int = CAPACITY) -> NDArray[np.float32]:
        """Give the newest readings of a column, at most `num`, in their order.

        Returns: (samples,), NaN where there is no reading; not to be written to.

        """
        begin = max(0, self._num - min(num, CAPACITY))
        if name not in self.names:
            return np.full(self._num - begin, np.nan, np.float32)
        values: NDArray[np.float32] = self._values[begin : self._num, self.names[name]]
        return values

    def time_s(self, num: int = CAPACITY) -> NDArray[np.float64]:
        """Give the times of the newest samples, at most `num`, in their order."""
        return self._time_s[max(0, self._num - min(num, CAPACITY)) : self._num]

    def number(self, fact: str) -> float | None:
        """Give a fact of this GPU that is a number, such as `memory_mib`."""
        return parse_number(self.facts.get(fact if self.gpu is None else f"{fact} {self.gpu}"))
