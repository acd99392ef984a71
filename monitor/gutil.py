"""The log format of `nvidia-smi dmon -s pumt -o DT`, both ways. The only file that knows it.

Written is the layout of the 550 driver series; read are those of 418 and later, by their headers.
Ours adds columns after pumt, and lines that begin with `##` for what dmon does not tell. They come
after the two header lines and not before them, since readers take the first line for the header.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from monitor.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from monitor.sample import Row

ROWS_PER_HEADER = 44
"""The two header lines come again after this many rows, whatever the number of GPUs."""

NO_READING = "-"

BLANKS = " \t\r"
"""A line of nothing but these is blank."""

_BASE_LETTERS = "pumt"
_NAMES_PREFIX = "#Date        Time         gpu"
_UNITS_PREFIX = "#YYYYMMDD    HH:MM:SS     Idx"
_KEYS = ("Date", "Time", "gpu")
_DATE_WIDTH = _TIME_WIDTH = 8
_DATA_CELL_525 = 7  # the 525 series writes rows wider than its own header


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its letter for `--columns`, head, unit, width, and the sample's field."""

    letter: str
    name: str
    unit: str
    field: str
    width: int = 6
    of_host: bool = False


COLUMNS: tuple[Column, ...] = (
    Column("p", "pwr", "W", "power_w"),
    Column("p", "gtemp", "C", "temp_c"),
    Column("p", "mtemp", "C", "mem_temp_c"),
    Column("u", "sm", "%", "sm_pct"),
    Column("u", "mem", "%", "mem_pct"),
    Column("u", "enc", "%", "enc_pct"),
    Column("u", "dec", "%", "dec_pct"),
    Column("u", "jpg", "%", "jpg_pct"),
    Column("u", "ofa", "%", "ofa_pct"),
    Column("m", "fb", "MB", "fb_used_mib"),
    Column("m", "bar1", "MB", "bar1_used_mib"),
    Column("m", "ccpm", "MB", "protected_used_mib"),
    Column("t", "rxpci", "MB/s", "pcie_rx_mb_s"),
    Column("t", "txpci", "MB/s", "pcie_tx_mb_s"),
    Column("c", "mclk", "MHz", "mem_clock_mhz"),
    Column("c", "pclk", "MHz", "sm_clock_mhz"),
    Column("j", "energy", "J", "energy_j", width=12),
    Column("r", "throt", "bits", "throttle_bits"),
    Column("g", "smact", "%", "sm_active_pct"),
    Column("g", "tensor", "%", "tensor_active_pct"),
    Column("g", "dram", "%", "dram_active_pct"),
    Column("h", "cpu", "%", "cpu_pct", of_host=True),
    Column("h", "hmem", "MB", "mem_used_mib", width=8, of_host=True),
)
FURTHER_LETTERS = "".join(dict.fromkeys(c.letter for c in COLUMNS if c.letter not in _BASE_LETTERS))


class Layout:
    """How our rows are written: pumt as the 550 series writes it, then the further columns."""

    def __init__(self, letters: str) -> None:
        """Choose columns by `letters`, such as `pumt` or `pumtjh`.

        Raises:
            UserError: it does not begin with pumt, or has an unknown or a doubled letter.

        """
        further = letters.removeprefix(_BASE_LETTERS)
        known = set(further) <= set(FURTHER_LETTERS) and len(set(further)) == len(further)
        if not (letters.startswith(_BASE_LETTERS) and known):
            raise UserError(
                f"columns: must be pumt and then any of the letters {FURTHER_LETTERS}, each once;"
                f" found {letters!r}: write for example --columns pumtjh"
            )
        self.letters = letters
        self.columns = tuple(c for x in letters for c in COLUMNS if c.letter == x)

    def header(self) -> str:
        """Give the two header lines."""
        names = "".join(f" {c.name:>{c.width}}" for c in self.columns)
        units = "".join(f" {c.unit:>{c.width}}" for c in self.columns)
        return f"{_NAMES_PREFIX}{names} \n{_UNITS_PREFIX}{units} \n"

    def line(self, row: Row) -> str:
        """One row, with its newline."""
        index = NO_READING if row.gpu.index is None else row.gpu.index
        cells = "".join(self._cell(column, row) for column in self.columns)
        # isoformat is several times faster than strftime, and knows no locale
        date = row.time.date().isoformat().replace("-", "")
        return f" {date}    {row.time.time().isoformat('seconds')}{index:>8}{cells} \n"

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

    @staticmethod
    def _cell(column: Column, row: Row) -> str:
        value = getattr(row.host if column.of_host else row.gpu, column.field)
        return f" {NO_READING if value is None else value:>{column.width}}"


def comment(key: str, value: str) -> str:
    """Write a `##` line, such as `## host: node1`."""
    clean = " ".join(f"{value}".split())
    return f"## {key}: {clean}\n"


def parse_comment(line: str) -> tuple[str, str] | None:
    """Read the key and value of a `##` line; None for any other line."""
    if not line.startswith("## "):
        return None
    key, found, value = line[3:].rstrip("\n").partition(": ")
    return (key, value) if found else None


@dataclass(frozen=True)
class Header:
    """What a header line says of the rows under it: names in order, and where cells end."""

    names: tuple[str, ...]
    ends: tuple[int, ...]
    length: int
    csv: bool = False

    def spans(self, length: int) -> tuple[tuple[int, int], ...] | None:
        """Where each cell lies in a row of `length` characters; None if that does not fit."""
        if self.names[:3] != _KEYS or self.csv:
            return None
        ends = self._ends(length)
        if ends is None:
            return None
        time = self.ends[1] - len("Time")  # both are left-aligned, unlike all that follows
        fixed = ((1, 1 + _DATE_WIDTH), (time, time + _TIME_WIDTH), (time + _TIME_WIDTH, ends[0]))
        return fixed + tuple(pairwise(ends))

    def row_lengths(self) -> tuple[int, ...]:
        """Give the lengths of rows whose cells can be cut by position."""
        return (self.length, self._length_525())

    def _ends(self, length: int) -> tuple[int, ...] | None:
        if length == self.length:
            return self.ends[2:]
        if length == self._length_525():
            return tuple(self.ends[2] + _DATA_CELL_525 * i for i in range(len(self.names) - 2))
        return None

    def _length_525(self) -> int:
        num_cells = len(self.names) - len(_KEYS)
        return self.ends[2] + _DATA_CELL_525 * num_cells + 1 if num_cells >= 0 else 0


@lru_cache(maxsize=64)
def parse_header(line: str) -> Header | None:
    """Read the line of names; None for any other line, the line of units included."""
    if not line.startswith("#") or line.startswith("##"):
        return None
    text = line.rstrip("\r\n")
    csv = "," in text
    tokens = list(re.finditer(r"[^\s,]+", text.replace("#", " ", 1)))
    names = tuple(token.group() for token in tokens)
    if "gpu" not in names or len(set(names)) != len(names):
        return None
    return Header(names, tuple(token.end() for token in tokens), len(text), csv)


def parse_row(line: str, header: Header) -> dict[str, str] | None:
    """Read the cells of a row by column name; None if the row cannot be read.

    Cells are split at spaces; where their number is not the header's, because two of them touch,
    they are cut by the header's columns.
    """
    text = line.rstrip("\r\n")
    cells = text.split(",") if header.csv else text.split()
    if len(cells) != len(header.names):
        spans = header.spans(len(text))
        if spans is None:
            return None
        cells = [text[start:end] for start, end in spans]
    elif len(text) < header.length and not header.csv:
        return None  # the last cell has lost digits: no row is shorter than its header
    row = {name: cell.strip() for name, cell in zip(header.names, cells, strict=True)}
    return row if _is_sound(row) else None


_NUMBER = re.compile(r"-|-?[0-9]+(\.[0-9]+)?")
_SHAPES = {
    "Date": re.compile(r"[0-9]{8}"),
    "Time": re.compile(r"[0-9]{2}:[0-9]{2}:[0-9]{2}"),
    "gpu": re.compile(r"-|[0-9]{1,4}"),
}


def _is_sound(row: Mapping[str, str]) -> bool:
    return all(_SHAPES.get(name, _NUMBER).fullmatch(cell) for name, cell in row.items())


def parse_value(cell: str) -> float | None:
    """Read a cell's number; None where there was no reading."""
    return None if cell == NO_READING else float(cell)


def parse(text: str) -> Iterator[tuple[Header, dict[str, str]] | None]:
    """Read a log row by row; None for each row that cannot be read.

    An unterminated last line is left for the next read: it may still be growing.
    """
    header: Header | None = None
    for line in text.split("\n")[:-1]:
        if not line.strip(BLANKS):
            continue
        if line.startswith("#"):
            header = parse_header(line) or header
            continue
        row = parse_row(line, header) if header else None
        yield (header, row) if header and row else None
