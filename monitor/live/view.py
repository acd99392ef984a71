"""What a person chose of a live view, and what each key changes of it. No terminal in here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from monitor.live.snapshot import STATES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monitor.live.snapshot import Row

GPUS, ALERTS, HELP = "gpus", "alerts", "help"

SORTS: dict[str, Callable[[Row], float | None] | None] = {
    "node": None,
    "util": lambda row: row.util_pct,
    "memory": lambda row: None if row.mem_mib is None else -row.mem_mib,
    "power": lambda row: None if row.power_w is None else -row.power_w,
    "temp": lambda row: None if row.temp_c is None else -row.temp_c,
    "clock": lambda row: row.readings.get("pclk"),
    "state": lambda row: STATES.index(row.states[0]) if row.states else None,
}
"""What to sort by, each in the direction that puts what may be wrong first."""

_MAX_FILTER = 60


@dataclass(frozen=True, kw_only=True)
class View:
    """What is chosen."""

    page: str = GPUS
    sort: str = "node"
    is_reversed: bool = False
    words: str = ""
    """Typed text: rows that have each of its words."""
    is_typing: bool = False
    is_paused: bool = False
    top: int = 0
    """The first row shown."""
    is_done: bool = False


def press(view: View, key: str, *, num_rows: int, num_shown: int) -> View:
    """Change what a key changes."""
    if view.is_typing:
        return _type(view, key)
    top = _scrolled(view.top, key, num_rows, num_shown)
    if top is not None:
        return replace(view, top=top)
    changes: dict[str, View] = {
        "q": replace(view, is_done=True) if view.page == GPUS else replace(view, page=GPUS, top=0),
        "Q": replace(view, is_done=True),
        "esc": replace(view, page=GPUS, words="", top=0),
        "s": replace(view, sort=_next(view.sort, 1), is_reversed=False, top=0),
        "S": replace(view, sort=_next(view.sort, -1), is_reversed=False, top=0),
        "r": replace(view, is_reversed=not view.is_reversed, top=0),
        "/": replace(view, page=GPUS, is_typing=True, top=0),
        "f": replace(view, page=GPUS, is_typing=True, top=0),
        "p": replace(view, is_paused=not view.is_paused),
        " ": replace(view, is_paused=not view.is_paused),
        "a": _turned(view, ALERTS),
        "?": _turned(view, HELP),
        "h": _turned(view, HELP),
    }
    return changes.get(key, view)


def chosen(rows: Sequence[Row], view: View) -> list[Row]:
    """Filter and sort rows; those without a reading come last, whatever the direction."""
    words = view.words.lower().split()
    kept = [row for row in rows if all(word in _text(row) for word in words)] if words else [*rows]
    by = SORTS[view.sort]
    if by is None:
        return kept[::-1] if view.is_reversed else kept
    known = [(value, row) for row in kept if (value := by(row)) is not None]
    known.sort(key=lambda pair: pair[0], reverse=view.is_reversed)
    return [row for _, row in known] + [row for row in kept if by(row) is None]


def _text(row: Row) -> str:
    """Return what a filter searches."""
    place = "cpu" if row.gpu is None else f"gpu{row.gpu}"
    parts = (row.host, place, row.model, *row.throttle, *row.states)
    return " ".join(parts).lower()


def _turned(view: View, page: str) -> View:
    return replace(view, page=GPUS if view.page == page else page, top=0)


def _next(sort: str, step: int) -> str:
    names = list(SORTS)
    return names[(names.index(sort) + step) % len(names)]


def _scrolled(top: int, key: str, num_rows: int, num_shown: int) -> int | None:
    last = max(0, num_rows - num_shown)
    page = max(1, num_shown - 1)
    moved = {
        "up": top - 1,
        "k": top - 1,
        "down": top + 1,
        "j": top + 1,
        "pgup": top - page,
        "pgdn": top + page,
        "home": 0,
        "g": 0,
        "end": last,
        "G": last,
    }.get(key)
    return None if moved is None else min(max(0, moved), last)


def _type(view: View, key: str) -> View:
    """Take a key as text of the filter."""
    if key == "enter":
        return replace(view, is_typing=False)
    if key == "esc":
        return replace(view, is_typing=False, words="")
    if key == "backspace":
        return replace(view, words=view.words[:-1])
    if key == "ctrl-u":
        return replace(view, words="")
    if len(key) == 1 and key.isprintable() and len(view.words) < _MAX_FILTER:
        return replace(view, words=view.words + key)
    return view
