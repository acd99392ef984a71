"""A row of docs/faults.md: what was measured of one fault."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """Times in seconds after the fault; None where a thing did not have to happen."""

    name: str
    how: str
    seen_s: float | None = None
    down_s: float | None = None
    recovered_s: float | None = None
    steps_lost: int | None = None
    code: int | None = None
    failure_class: str | None = None
    last_line: str = ""
    outcome: str = ""


def save(row: Row, folder: Path, order: int) -> None:
    """Keep a row for the table, at its place."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{order:02d}.json"
    path.write_text(json.dumps(dataclasses.asdict(row), indent=1) + "\n", encoding="utf-8")


def load(folder: Path) -> list[Row]:
    """Read all rows that were kept, in the table's order."""
    return [Row(**json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]


def render(rows: list[Row]) -> str:
    """Give the table as Markdown."""
    head = "| " + " | ".join(_COLUMNS) + " |"
    rule = "|" + " --- |" * len(_COLUMNS)
    return "\n".join([head, rule, *map(_line, rows)])


_COLUMNS = (
    "fault",
    "injected how",
    "seen after, s",
    "torn down after, s",
    "training again after, s",
    "steps lost",
    "exit code",
    "class",
    "what became of the run",
    "last line",
)


def _line(row: Row) -> str:
    cells = (
        row.name,
        row.how,
        _number(row.seen_s),
        _number(row.down_s),
        _number(row.recovered_s),
        "-" if row.steps_lost is None else str(row.steps_lost),
        "-" if row.code is None else str(row.code),
        row.failure_class or "-",
        row.outcome,
        f"`{row.last_line}`" if row.last_line else "-",
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
