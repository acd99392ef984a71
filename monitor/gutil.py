"""Our log: what `nvidia-smi dmon -s pumt -o DT` writes, and more. Written here, read by `dmon`.

Written is the layout of the 550 driver series.
Ours adds columns after pumt, and lines that begin with `##` for what dmon does not tell. They come
after the two header lines and not before them, since readers take the first line for the header.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from monitor.dmon import NO_READING
from monitor.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitor.sample import Row

ROWS_PER_HEADER = 44
"""The two header lines come again after this many rows, whatever the number of GPUs."""

_BASE_LETTERS = "pumt"
_NAMES_PREFIX = "#Date        Time         gpu"
_UNITS_PREFIX = "#YYYYMMDD    HH:MM:SS     Idx"


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
