"""Reads logs, and tells their rows."""

import numpy as np

from monitor.logs import reader

Values = dict[str, float | None]


def decoded(log: reader.Log) -> list[tuple[int, int, Values]]:
    """Time, GPU and readings of each row."""
    return [
        (
            int(log.time_s[i]),
            int(log.gpu[i]),
            {
                name: None if np.isnan(column[i]) else float(column[i])
                for name, column in log.values.items()
            },
        )
        for i in range(log.num_rows)
    ]
