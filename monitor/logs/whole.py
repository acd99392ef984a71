"""A log whole: its files, the oldest first, with times that never go back within a host."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from monitor.logs import clock, facts, reader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from monitor.logs.parser import Place
    from monitor.logs.reader import Log

_Any = TypeVar("_Any", bound=np.generic)


def read(paths: Sequence[str], wanted: frozenset[str] | None = None) -> list[Log]:
    """Read the files of one log; of its columns those `wanted`, if not all.

    Raises:
        UserError: a file cannot be read.

    """
    logs = [reader.read(path, wanted) for path in paths]
    places = {place for log in logs for place in log.places}
    return functools.reduce(_set_right, sorted(places, key=repr), logs)


def _set_right(logs: list[Log], place: Place) -> list[Log]:
    rows = [log.rows_of(place) for log in logs]
    time_s = _joined([log.time_s[which] for log, which in zip(logs, rows, strict=True)])
    if not clock.is_odd(time_s):
        return logs
    mono_s = _joined([_monotonic_s(log)[which] for log, which in zip(logs, rows, strict=True)])
    told = zip(facts.intervals_s(logs), rows, strict=True)
    told_s = _joined([interval_s[which] for interval_s, which in told])
    shift_s = clock.shifts_s(time_s, mono_s, told_s)
    if shift_s is None:
        return logs
    parts = np.split(shift_s, np.cumsum([which.sum() for which in rows])[:-1])
    return [log.shifted(which, by_s) for log, which, by_s in zip(logs, rows, parts, strict=True)]


def _monotonic_s(log: Log) -> NDArray[np.floating]:
    """Give the monotonic stamps, which take a look of their own where they were not asked for."""
    if "monitor" in log.facts and "mono" not in log.values:
        stamps = reader.read(log.path, frozenset({"mono"}))
        if stamps.num_rows >= log.num_rows:  # it may have grown
            log = replace(log, values=stamps.values)
    return log.values.get("mono", np.full(log.num_rows, np.nan))[: log.num_rows]


def _joined(parts: Sequence[NDArray[_Any]]) -> NDArray[_Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
