"""What a case is: one result, from a process of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    Values = Mapping[str, object]
    """What was measured, by name; a name ends with its unit."""


class CaseError(Exception):
    """Something is not as it should be; one line says what must hold, and what was found.

    `values` is what was measured all the same: there may be no second time.
    """

    def __init__(self, line: str, values: Values | None = None) -> None:
        super().__init__(line)
        self.values = values or {}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a case runs."""

    folder: Path
    """Its own, empty, gone afterwards."""
    out: Path
    """What is written here is kept."""
    is_rehearsal: bool
    """On the CPU and at toy size: every line is executed, and no number counts."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One result."""

    name: str
    about: str
    run: Callable[[Place], Values]
    """Raises CaseError, or anything else, if it fails."""
    limit_s: float
    """Its process is ended then, with all that it started."""
    number: int = 1
    """Of the round, where a case is repeated; a rehearsal has one."""
