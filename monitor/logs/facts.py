"""What a log's own lines say of the rows below them: its GPUs, its interval, the start.

All may change within a log. An index can become another GPU, as after a requeue or a reset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from monitor.logs import gutil

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from monitor.logs.log import Log

UNKNOWN = "-"
_DAY_S = 86_400


def values(logs: Sequence[Log], fact: str) -> tuple[list[str], list[NDArray[np.int32]]]:
    """Give the values of a fact in the files of a log, and of each file's rows which of them.

    Rows above the first line that states it are that one's, too; where no line does, UNKNOWN. A
    GPU that did not answer has a line that states nothing.
    """
    names = {UNKNOWN: 0}
    codes = []
    for log in logs:
        stated = [(n, value) for n, value in log.reported(fact) if value != UNKNOWN]
        reported = stated or [(0, UNKNOWN)]
        mine = np.array([names.setdefault(value, len(names)) for _, value in reported], np.int32)
        since = [number for number, _ in reported]
        which = np.searchsorted(since, log.num_changes, "right") - 1
        codes.append(mine[np.maximum(0, which)])
    return list(names), codes


def uuids(logs: Sequence[Log]) -> tuple[list[str], list[NDArray[np.int32]]]:
    """Give the UUIDs in the files of a log, and of each file's rows which of them."""
    names = {UNKNOWN: 0}
    codes = [np.zeros(log.num_rows, np.int32) for log in logs]
    keys = {key for log in logs for key, _ in log.changes if key.startswith("gpu ")}
    for index in sorted(int(key.removeprefix("gpu ")) for key in keys):
        reported, which = values(logs, f"gpu {index}")
        units = [names.setdefault(value.split(" ")[0] or UNKNOWN, len(names)) for value in reported]
        for log, code, mine in zip(logs, codes, which, strict=True):
            code[:] = np.where(log.gpu == index, np.array(units, np.int32)[mine], code)
    return list(names), codes


def intervals_s(logs: Sequence[Log]) -> list[NDArray[np.float64]]:
    """Give the interval that a log states, row by row; NaN where it states none up to a day."""
    reported, which = values(logs, "interval_s")
    seconds = np.array([gutil.parse_number(value) for value in reported], np.float64)
    seconds[~((seconds > 0) & (seconds <= _DAY_S))] = np.nan
    return [seconds[mine] for mine in which]


def as_of(log: Log, num_changes: int) -> dict[str, str]:
    """Give all facts of a log; of those that change within it, the ones above some rows."""
    return log.facts | dict(log.changes) | dict(log.changes[:num_changes])
