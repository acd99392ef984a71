"""Reads logs, and tells their rows."""

from collections.abc import Iterator, Sequence

import numpy as np

from monitor.logs import dmon, reader
from monitor.logs.dmon import Header

Values = dict[str, float | None]


def told(log: reader.Log) -> list[tuple[int, int, Values]]:
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


def parse(text: str) -> Iterator[tuple[Header, dict[str, str]] | None]:
    """Read a log row by row; None for each row that cannot be read.

    An unterminated last line is left for the next read: it may still be growing.
    """
    heads, rows = dmon.Heads(), list[str]()
    for line in [*text.removeprefix("\ufeff").split("\n")[:-1], "#"]:  # as Windows begins a text
        if not line.startswith("#"):
            rows.append(line)
            continue
        yield from _parse_rows(rows, heads.header)
        rows.clear()
        if not line.startswith("##"):
            heads.see(line)


def _parse_rows(
    lines: Sequence[str], header: Header | None
) -> Iterator[tuple[Header, dict[str, str]] | None]:
    header = header and dmon.settled(header, lines)
    for line in lines:
        if line.strip(dmon.BLANKS):
            row = dmon.parse_row(line, header) if header else None
            yield (header, row) if header and row else None
