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
            self.num_samples = 0
            self._time_s, self._values = np.empty(0), np.empty((0, len(names)), np.float32)
        self.names = names
        self._time_s = np.concatenate((self._time_s, time_s))[-CAPACITY:]
        self._values = np.concatenate((self._values, values), dtype=np.float32)[-CAPACITY:]
        self.num_samples += len(time_s)
        self._newest = values[-1].tolist()

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
        if name not in self.names:
            return np.full(len(self.time_s(num)), np.nan, np.float32)
        values: NDArray[np.float32] = self._values[-num:, self.names[name]]
        return values

    def time_s(self, num: int = CAPACITY) -> NDArray[np.float64]:
        """Give the times of the newest samples, at most `num`, in their order."""
        return self._time_s[-num:]

    def number(self, fact: str) -> float | None:
        """Give a fact of this GPU that is a number, such as `memory_mib`."""
        return parse_number(self.facts.get(fact if self.gpu is None else f"{fact} {self.gpu}"))
