"""The first table: what each GPU of each node did, and what it cost."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from monitor import frame, stats
from monitor.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console, RenderableType

_MIB_PER_GIB = 1024
_J_PER_KJ, _J_PER_KWH = 1e3, 3.6e6
_WIDTH = 132  # of a report that goes into a file
RULES = {
    "busy": f"share of samples with sm above {stats.BUSY_SM_PCT} %",
    "energy": "the GPU's own counter where the log has it, else power over time (~);"
    f" gaps above {stats.MAX_GAP} intervals add nothing",
}


@dataclass(frozen=True)
class _File:
    """What is worth saying of a file besides its rows."""

    path: str
    num_rows: int
    num_unreadable: int
    torn: bool

    def note(self) -> str | None:
        """One line for a person; None if all of it was read."""
        parts = []
        if self.num_unreadable:
            parts.append(f"{self.num_unreadable} rows could not be read")
        if self.torn:
            parts.append("the last line has no end and was left out")
        if not self.num_rows:
            parts.append("no samples")
        return f"{self.path}: {'; '.join(parts)}" if parts else None


def report(paths: Sequence[str], *, as_json: bool = False) -> int:
    """Print the tables of some logs; 0.

    Args:
        paths: logs, or directories that hold `.gutil` files.
        as_json: one JSON document instead.

    Raises:
        UserError: a file cannot be read, or there is none.

    """
    files, tallies = [], []
    for path in _logs(paths):
        log = frame.load(path)  # one at a time: its rows are let go before the next
        files.append(_File(path, log.rows.height, log.num_unreadable, log.torn))
        tallies.append(stats.tally(log))
    joined = stats.join(tallies)
    if as_json:
        print(json.dumps(_document(joined, files), indent=2, default=str))
    else:
        _print(joined, files)
    return 0


def _logs(paths: Iterable[str]) -> list[str]:
    logs: list[str] = []
    for path in paths:
        if not Path(path).is_dir():
            logs.append(path)
            continue
        found = sorted(str(log) for log in Path(path).glob("*.gutil"))
        if not found:
            raise UserError(
                f"directory: must hold .gutil files; found none in {path}:"
                " name the output directory of a job"
            )
        logs += found
    return logs


def _document(joined: pl.DataFrame, files: Sequence[_File]) -> dict[str, Any]:
    gpus = joined.filter(pl.col("gpu").is_not_null())
    keep = [name for name in gpus.columns if not name.endswith(("_sum", "_count"))]
    keep = [name for name in keep if not name.startswith(("cpu_", "hmem_"))]
    return {
        "gpus": gpus.select(keep).to_dicts(),
        "hosts": stats.hosts(joined).to_dicts(),
        "files": [vars(file) for file in files],
        "rules": RULES,
    }


def _print(joined: pl.DataFrame, files: Sequence[_File]) -> None:
    console = _console()
    for part in _parts(joined):
        console.print(part)
    _print_notes(console, files)


def _console() -> Console:
    from rich.console import Console  # noqa: PLC0415 - `--json` does not need it

    class _Console(Console):
        def on_broken_pipe(self) -> None:
            raise  # noqa: PLE0704 - the command line ends quietly; rich would exit with code 1

    console = _Console(highlight=False)
    return console if console.is_terminal else _Console(width=_WIDTH, highlight=False)


def _parts(joined: pl.DataFrame) -> Iterable[RenderableType]:
    gpus = joined.filter(pl.col("gpu").is_not_null())
    if not gpus.is_empty():
        yield _gpu_table(gpus)
    hosts = stats.hosts(joined)
    if not hosts.is_empty():
        yield _host_table(hosts)


def _gpu_table(gpus: pl.DataFrame) -> RenderableType:
    from rich.table import Table  # noqa: PLC0415

    heads = "samples time sm_% power_W memory_GiB temp_C PCIe_rx/tx tensor_% busy_% energy"
    table = Table(title="GPUs: mean / peak", title_justify="left")
    table.add_column("node", overflow="fold")
    for head in ("gpu", *heads.split()):
        table.add_column(head.replace("_", " "), justify="right", no_wrap=True)
    for row in gpus.to_dicts():
        table.add_row(*_gpu_cells(row))
    return table


def _gpu_cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["host"],
        str(row["gpu"]),
        str(row["num_samples"]),
        _duration(row["span_s"]),
        _pair(row["sm_mean"], row["sm_max"]),
        _pair(row["pwr_mean"], row["pwr_max"]),
        _pair(row["fb_mean"], row["fb_max"], _MIB_PER_GIB, 1),
        _number(row["gtemp_max"]),
        _pair(row["rxpci_mean"], row["txpci_mean"]),
        _number(row["tensor_mean"]),
        _number(row["busy_pct"]),
        _energy(row["energy_j"], row["energy_from"]),
    )


def _host_table(hosts: pl.DataFrame) -> RenderableType:
    from rich.table import Table  # noqa: PLC0415

    table = Table(title="Hosts: mean / peak", title_justify="left")
    table.add_column("node")
    for head in ("GPUs", "samples", "time", "cpu %", "memory GiB"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in hosts.to_dicts():
        table.add_row(
            row["host"],
            str(row["num_gpus"]),
            str(row["num_samples"]),
            _duration(row["span_s"]),
            _pair(row["cpu_mean"], row["cpu_max"]),
            _pair(row["hmem_mean"], row["hmem_max"], _MIB_PER_GIB, 1),
        )
    return table


def _print_notes(console: Console, files: Sequence[_File]) -> None:
    for name, rule in RULES.items():
        console.print(f"{name}: {rule}", style="dim", markup=False)
    for note in filter(None, (file.note() for file in files)):
        console.print(note, style="yellow", markup=False, soft_wrap=True)


def _number(value: float | None, unit: float = 1, digits: int = 0) -> str:
    if value is None or math.isnan(value):
        return "-"
    return f"{value / unit:.{digits}f}"


def _pair(first: float | None, second: float | None, unit: float = 1, digits: int = 0) -> str:
    if first is None and second is None:
        return "-"
    return f"{_number(first, unit, digits)} / {_number(second, unit, digits)}"


def _energy(joules: float | None, source: str | None) -> str:
    if joules is None:
        return "-"
    sign = "" if source == "counter" else "~"
    if joules < _J_PER_KJ:
        return f"{sign}{joules:.0f} J"
    if joules < _J_PER_KWH:
        return f"{sign}{joules / _J_PER_KJ:.1f} kJ"
    return f"{sign}{joules / _J_PER_KWH:.2f} kWh"


def _duration(seconds: float | None) -> str:
    minutes, rest = divmod(round(seconds or 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
