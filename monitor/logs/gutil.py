"""Our log: what `nvidia-smi dmon -s pumt -o DT` writes, and more. Written here, read by `dmon`.

Written is the layout of the 550 driver series.
Ours adds columns after pumt, and lines that begin with `##` for what dmon does not have. They come
after the two header lines and not before them, since readers take the first line for the header.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

from monitor.errors import UserError
from monitor.logs import columns
from monitor.logs.columns import BASE_LETTERS, NO_READING
from rundir.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from monitor.logs.sample import Row

ROWS_PER_HEADER = 44
"""The two header lines come again after this many rows, whatever the number of GPUs."""

_NAMES_PREFIX = "#Date        Time         gpu"
_UNITS_PREFIX = "#YYYYMMDD    HH:MM:SS     Idx"
_OFFSET = re.compile(r"([+-])([01][0-9]|2[0-3]):([0-5][0-9])")


class Layout:
    """How our rows are written: pumt as the 550 series writes it, then the further columns."""

    def __init__(self, letters: str) -> None:
        """Choose columns by `letters`, such as `pumt` or `pumtjh`.

        Raises:
            UserError: it does not begin with pumt, or has an unknown or a doubled letter.

        """
        further, others = (x.removeprefix(BASE_LETTERS) for x in (letters, columns.letters()))
        known = set(further) <= set(others) and len(set(further)) == len(further)
        if not (letters.startswith(BASE_LETTERS) and known):
            raise UserError(
                f"columns must be pumt and then any of the letters {others}, each once",
                f"{letters!r}",
                "write for example --columns pumtjh",
            )
        self.letters = letters
        self.columns = tuple(c for x in letters for c in columns.COLUMNS if c.letter == x)
        self._cells = "".join(f" %{c.width}s" for c in self.columns) + " \n"
        self._width = len(self._cells % (("",) * len(self.columns)))
        self._fields = tuple(c.field for c in self.columns)

    def header(self) -> str:
        """Give the two header lines."""
        names = "".join(f" {c.name:>{c.width}}" for c in self.columns)
        units = "".join(f" {c.unit:>{c.width}}" for c in self.columns)
        return f"{_NAMES_PREFIX}{names} \n{_UNITS_PREFIX}{units} \n"

    def line(self, row: Row) -> str:
        """One row, with its newline."""
        index = NO_READING if row.gpu.index is None else row.gpu.index
        found = row.gpu.readings | row.host.readings | row.rank.readings
        texts = [found.get(name, NO_READING) for name in self._fields]
        cells = self._cells % tuple(texts)
        if len(cells) != self._width:
            cells = self._cells % tuple(self._fitting(texts))
        return f"{_stamp(row.time)}{index:>8}{cells}"

    def block(self, rows: Sequence[Row], num_before: int) -> str:
        """Rows with the headers that fall between them.

        Args:
            rows: what to write.
            num_before: how many rows this log holds already since its first header.

        """
        parts = []
        for number, row in enumerate(rows, start=num_before):
            if number and number % ROWS_PER_HEADER == 0:
                parts.append(self.header())
            parts.append(self.line(row))
        return "".join(parts)

    def _fitting(self, cells: Sequence[object]) -> list[object]:
        """Leave out what is too wide for its cell: it would move the rest, and cost the row."""
        return [
            NO_READING if len(str(cell)) > c.width else cell
            for c, cell in zip(self.columns, cells, strict=True)
        ]


@lru_cache(maxsize=2)
def _stamp(time: datetime) -> str:
    """Write the time, which all rows of a poll share."""
    # isoformat is several times faster than strftime, and knows no locale
    date = time.date().isoformat().replace("-", "")
    return f" {date}    {time.time().isoformat('seconds')}"


def comment(key: str, value: str) -> str:
    r"""Write a `##` line, such as `## host: node1`; what is no text is written as `\x1b`."""
    clean = " ".join(f"{value}".split())
    return f"## {key}: {printable(clean)}\n"


def parse_comment(line: str) -> tuple[str, str] | None:
    """Read the key and value of a `##` line, fit to be shown; None for any other line."""
    if not line.startswith("## "):
        return None
    key, found, value = line[3:].rstrip("\n").partition(": ")
    return (key, printable(value)) if found else None


def parse_offset(text: str) -> timedelta | None:
    """Read an offset from UTC such as `+01:00`; None if it is none, as `+99:00`."""
    found = _OFFSET.fullmatch(text)
    if found is None:
        return None
    offset = timedelta(hours=int(found[2]), minutes=int(found[3]))
    return -offset if found[1] == "-" else offset


def parse_number(text: str | None) -> float | None:
    """Read a fact as a number; None if it is none."""
    try:
        value = float(text) if text is not None else None
    except ValueError:
        return None
    return value if value is not None and math.isfinite(value) else None
