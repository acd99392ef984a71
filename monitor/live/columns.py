"""The columns of the live view's table, and which of them a screen has room for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from monitor.analysis.thresholds import Thresholds
from monitor.live import sparkline
from monitor.live.snapshot import GONE, IDLE, LOST, STALE, THROTTLED
from monitor.logs.columns import COLUMNS
from monitor.logs.constants import BUSY_PCT
from monitor.words import MIB_PER_GIB, NONE, brief

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monitor.live.snapshot import Row
    from monitor.logs import columns as logs_columns

Span = tuple[str, str]
"""Text, and how it looks: a name of `STYLES`."""

STYLES = {
    "": "",
    "title": "bold",
    "head": "bold reverse",
    "dim": "dim",
    "good": "green",
    "warn": "yellow",
    "bad": "bold red",
    "trend": "cyan",
    "key": "bold cyan",
    "pause": "bold black on yellow",
}

_HOT_C = 85.0
_FULL_SHARE = Thresholds().memory_full_pct / 100
_BIG_GIB = 99.95
_MIN_TREND, _MAX_TREND = 8, 60
_MIN_NODE, _MAX_NODE = 8, 24
_MAX_STATE = 28
_FIRST_OPTIONAL = 8  # rank of the first column that a log may well not have
_STATE_STYLES = {GONE: "bad", LOST: "bad", STALE: "warn", THROTTLED: "warn", IDLE: "warn"}


@dataclass(frozen=True)
class Column:
    """One column; `rank` orders what is left out first where the screen is narrow: the highest."""

    title: str
    width: int
    rank: int
    cell: Callable[[Row], Span]
    is_text: bool = False
    """Text is flush left, numbers are flush right."""


def fit(rows: Sequence[Row], width: int, *, ascii_only: bool) -> list[Column]:
    """Choose the columns that fit, and give the rest of the width to the trend."""
    longest = max((len(row.host) for row in rows), default=0)
    node = Column("node", min(_MAX_NODE, max(_MIN_NODE, longest)), 0, _node, is_text=True)
    columns = [node, *(column for column in _COLUMNS if _has_readings(column, rows))]
    while len(columns) > 1 and _needed(columns) > width:
        columns.remove(max(columns, key=lambda column: column.rank))
    spare = max(0, width - _needed(columns))
    spare -= min(spare, _more_words(rows))  # they are worth more than a longer trend
    spare = min(_MAX_TREND - _MIN_TREND, spare)
    return [
        _trend(_MIN_TREND + spare, ascii_only=ascii_only) if column.title == "trend" else column
        for column in columns
    ]


def _has_readings(column: Column, rows: Sequence[Row]) -> bool:
    """Whether it is worth its room: the last ones are, if any row has a reading."""
    if column.rank < _FIRST_OPTIONAL or column.is_text or not rows:
        return True
    return any(column.cell(row)[0] != NONE for row in rows)


def _more_words(rows: Sequence[Row]) -> int:
    """Return how much wider than their column the words of the last column are."""
    kinds = {(row.states, row.throttle): row for row in rows}  # few, of however many rows
    longest = max((len(_state(row)[0]) for row in kinds.values()), default=0)
    return max(0, min(_MAX_STATE, longest) - _COLUMNS[-1].width)


def _needed(columns: Sequence[Column]) -> int:
    return sum(column.width + 1 for column in columns) - 1


def _trend(width: int, *, ascii_only: bool) -> Column:
    def cell(row: Row) -> Span:
        values = row.trend.tolist()
        return sparkline.sparkline(values, width, ascii_only=ascii_only), "trend"

    return Column("trend", width, 3, cell, is_text=True)


def _node(row: Row) -> Span:
    return row.host, _state_style(row)


def _gpu(row: Row) -> Span:
    return ("cpu" if row.gpu is None else str(row.gpu)), ""


def _util(row: Row) -> Span:
    if row.util_pct is None:
        return NONE, "dim"
    style = "warn" if row.util_pct <= BUSY_PCT and row.gpu is not None else "good"
    return f"{row.util_pct:.0f}%", style


def _memory(row: Row) -> Span:
    if row.mem_mib is None:
        return NONE, "dim"
    if not row.mem_total_mib:
        return f"{_gib(row.mem_mib)}G", ""
    style = "warn" if row.mem_mib > _FULL_SHARE * row.mem_total_mib else ""
    return f"{_gib(row.mem_mib)}/{_gib(row.mem_total_mib)}G", style


def _gib(mib: float) -> str:
    gib = mib / MIB_PER_GIB
    return f"{gib:.1f}" if gib < _BIG_GIB else f"{gib:.0f}"


def _temp(row: Row) -> Span:
    text, style = _number(row.temp_c, "C")
    return text, "bad" if row.temp_c is not None and row.temp_c >= _HOT_C else style


def _state(row: Row) -> Span:
    """Say what is wrong in words, else why clocks are low."""
    words = {
        STALE: f"stale {brief(row.quiet_s)}",
        IDLE: f"idle {brief(row.idle_s)}",
        THROTTLED: ", ".join(row.throttle),
    }
    parts = [words.get(state, state) for state in row.states]
    if not row.is_throttled:
        parts += row.throttle
    return ", ".join(parts) or NONE, _state_style(row) or ("" if parts else "dim")


def _state_style(row: Row) -> str:
    return _STATE_STYLES[row.states[0]] if row.states else ""


def _number(value: float | None, unit: str) -> Span:
    return (NONE, "dim") if value is None else (f"{value:.0f}{unit}", "")


def _of_registry() -> list[Column]:
    """Make columns of what the registry has a live view show."""
    shown = [(column, column.live) for column in COLUMNS if column.live is not None]
    return [
        Column(live.title, live.width, live.rank, _reading(column))
        for column, live in sorted(shown, key=lambda pair: pair[1].order)
    ]


def _reading(column: logs_columns.Column) -> Callable[[Row], Span]:
    unit = "%" if column.unit == "%" else ""
    return lambda row: _number(row.readings.get(column.name), unit)


_COLUMNS = (
    Column("gpu", 3, 1, _gpu),
    Column("util", 4, 2, _util),
    Column("trend", _MIN_TREND, 3, lambda _: ("", "")),
    Column("memory", 10, 4, _memory),
    Column("power", 5, 6, lambda row: _number(row.power_w, "W")),
    Column("limit", 5, 9, lambda row: _number(row.power_limit_w, "W")),
    Column("temp", 4, 7, _temp),
    *_of_registry(),
    Column("pcie MB/s", 9, 14, lambda row: _number(row.pcie_mb_s, "")),
    Column("throttle, state", 15, 5, _state, is_text=True),
)
