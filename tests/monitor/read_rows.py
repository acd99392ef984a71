"""Reads logs, and tells their rows."""

import numpy as np

from monitor.logs import dmon, reader
from monitor.logs.log_events import Place
from monitor.logs.parser import Parser

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


def one_by_one(text: str) -> list[dict[str, str] | None]:
    """The cells of each whole row, as `dmon.parse_row` reads it; None: it cannot be read."""
    parser = Parser(Place(None, "n1"), is_patient=True)
    return [
        dmon.parse_row(line, stretch.header) if stretch.header else None
        for stretch in parser.take(text[: text.rfind("\n") + 1].encode()) + parser.end()
        for line in b"".join(stretch.texts).decode("utf-8", "replace").split("\n")
        if line.strip(dmon.BLANKS)
    ]
