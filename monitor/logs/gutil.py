"""Our log: what `nvidia-smi dmon -s pumt -o DT` writes, and more. Written here, read by `dmon`.

Written is the layout of the 550 driver series.
Ours adds columns after pumt, and lines that begin with `##` for what dmon does not tell. They come
after the two header lines and not before them, since readers take the first line for the header.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

from monitor.errors import UserError, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from monitor.logs.sample import Row

NO_READING = "-"  # `dmon.NO_READING`: to import that would be a tenth of the recorder's start
ROWS_PER_HEADER = 44
"""The two header lines come again after this many rows, whatever the number of GPUs."""

_BASE_LETTERS = "pumt"
_PARTS = ("gpu", "host", "rank")
_NAMES_PREFIX = "#Date        Time         gpu"
_UNITS_PREFIX = "#YYYYMMDD    HH:MM:SS     Idx"
_OFFSET = re.compile(r"([+-])([01][0-9]|2[0-3]):([0-5][0-9])")


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its letter for `--columns`, head, unit, width, and the sample's field."""

    letter: str
    name: str
    unit: str
    field: str
    width: int = 6
    of: str = "gpu"
    """Which part of a row has the field: `gpu`, `host` or `rank`."""

    @property
    def of_host(self) -> bool:
        """Whether it is the same in the rows of all GPUs."""
        return self.of == "host"


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
    Column("h", "cpu", "%", "cpu_pct", of="host"),
    Column("h", "hmem", "MB", "mem_used_mib", width=8, of="host"),
    Column("e", "sbecc", "errs", "ecc_corrected", width=8),
    Column("e", "dbecc", "errs", "ecc_uncorrected"),
    Column("e", "remap", "rows", "remapped_rows"),
    Column("v", "pviol", "%", "power_pct"),
    Column("v", "tviol", "%", "heat_pct"),
    Column("x", "smavg", "%", "sm_avg_pct"),
    Column("x", "smmax", "%", "sm_max_pct"),
    Column("n", "nvrx", "MB/s", "nvlink_rx_mb_s", width=8),
    Column("n", "nvtx", "MB/s", "nvlink_tx_mb_s", width=8),
    Column("i", "ibrx", "MB/s", "ib_rx_mb_s", width=8, of="host"),
    Column("i", "ibtx", "MB/s", "ib_tx_mb_s", width=8, of="host"),
    Column("s", "step", "count", "step", width=10, of="rank"),
    Column("q", "rank", "id", "rank", of="rank"),
    Column("q", "rfb", "MB", "held_mib", width=8, of="rank"),
    Column("q", "ofb", "MB", "other_mib", width=8, of="rank"),
    Column("d", "shm", "%", "shm_pct", of="host"),
    Column("d", "disk", "%", "disk_pct", of="host"),
    Column("k", "mono", "s", "mono_s", width=10, of="host"),
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
        self._cells = "".join(f" %{c.width}s" for c in self.columns) + " \n"
        self._width = len(self._cells % (("",) * len(self.columns)))
        self._getters = [_getter([c for c in self.columns if c.of == part]) for part in _PARTS]
        order = [c for part in _PARTS for c in self.columns if c.of == part]
        self._places = itemgetter(*(order.index(c) for c in self.columns))

    def header(self) -> str:
        """Give the two header lines."""
        names = "".join(f" {c.name:>{c.width}}" for c in self.columns)
        units = "".join(f" {c.unit:>{c.width}}" for c in self.columns)
        return f"{_NAMES_PREFIX}{names} \n{_UNITS_PREFIX}{units} \n"

    def line(self, row: Row) -> str:
        """One row, with its newline."""
        index = NO_READING if row.gpu.index is None else row.gpu.index
        of_gpu, of_host, of_rank = self._getters
        found = self._places(of_gpu(row.gpu) + of_host(row.host) + of_rank(row.rank))
        told = [NO_READING if value is None else value for value in found]
        cells = self._cells % tuple(told)
        if len(cells) != self._width:
            cells = self._cells % tuple(self._fitting(told))
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
        """Leave out what is too wide for its cell: it would move the rest, and cost the row.

        The columns of dmon are left as dmon writes them.
        """
        return [
            NO_READING if c.letter not in _BASE_LETTERS and len(str(cell)) > c.width else cell
            for c, cell in zip(self.columns, cells, strict=True)
        ]


@lru_cache(maxsize=2)
def _stamp(time: datetime) -> str:
    """Write the time, which all rows of a look share."""
    # isoformat is several times faster than strftime, and knows no locale
    date = time.date().isoformat().replace("-", "")
    return f" {date}    {time.time().isoformat('seconds')}"


def _getter(columns: Sequence[Column]) -> Callable[[Any], tuple[object, ...]]:
    """Get the fields of one part of a row, in one call."""
    names = [c.field for c in columns]
    if len(names) > 1:
        return attrgetter(*names)
    return lambda part: tuple(getattr(part, name) for name in names)


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
