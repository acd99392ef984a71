"""One picture of a live view: lines of styled text for a screen of a given size. No terminal."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size

from monitor.analysis.findings import by_severity
from monitor.live import columns as live_columns
from monitor.live import head as live_head
from monitor.live import view as live_view
from monitor.runs.render import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monitor.analysis.findings import Summary
    from monitor.live.columns import Column, Span
    from monitor.live.snapshot import Row, Snapshot
    from monitor.live.view import View

    Line = list[Span]

_ALERT_STYLES = {"error": "bad", "warning": "warn", "hint": "dim"}
_LOW = 12  # lines: a lower screen shows rows and little else
_CUT = {False: "…", True: "~"}

_HELP = """\
up down PgUp PgDn Home End   move through the rows (also k j g G)
s S        sort by the next, the one before of
           {sorts}
r          turn the order round
/          filter: type words; a row must have each of them in its node, gpu3,
           model or state (such as: gpu01 idle); Enter keeps it, Esc drops it
p, space   pause: the picture stands still, reading goes on
a          all alerts
? h        this page
q          back, or quit (as Ctrl-C)

trend      utilisation of the last samples, the newest rightmost
gpu "cpu"  a node without a GPU: its processors and its memory
idle       at most 5 % busy for 2 min or more
stale      the log has not grown for 5 of its intervals (at least 30 s)
gone       the log is not there any more
lost       a GPU that had readings has none
throttle   why clocks are low; a power cap is how a busy GPU runs
"""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A page: what stands above, what can be moved through, and what stands below."""

    width: int
    height: int | None
    """None: as high as it takes."""
    above: list[Line]
    rows: Sequence[Any]
    draw: Callable[[Any], Line]
    """Draws one of them."""
    below: Sequence[Line] = ()
    view: View
    ascii_only: bool

    @property
    def num_shown(self) -> int:
        """For how many rows there is room."""
        if self.height is None:
            return len(self.rows)
        return max(1, self.height - len(self.above) - len(self.below) - 1)

    def lines(self) -> list[Line]:
        """Draw it: lines no wider than the screen, and as many as it has, if it has a height."""
        num = self.num_shown
        top = max(0, min(self.view.top, len(self.rows) - num))
        rows = [self.draw(row) for row in self.rows[top : top + num]]
        lines = [*self.above, *rows]
        if self.height is None:
            lines += self.below
        else:
            lines += [[] for _ in range(num - len(rows))]
            foot = _foot(self.view, self.width, len(self.rows), top, len(rows))
            lines = [*[*lines, *self.below][: self.height - 1], foot]
        return [_cut(line, self.width, _CUT[self.ascii_only]) for line in lines]


def picture(
    snapshot: Snapshot,
    alerts: Sequence[Summary],
    view: View,
    size: tuple[int, int | None],
    *,
    ascii_only: bool,
) -> Picture:
    """Compose a page."""
    width, height = size
    above = [live_head.title(snapshot, width, is_paused=view.is_paused)]
    is_low = height is not None and height < _LOW
    if not is_low:
        if snapshot.progress is not None:
            above.append(live_head.progress_line(snapshot.progress, width, ascii_only=ascii_only))
        above.append(live_head.sum_line(snapshot.rows, width))
    page: dict[str, Any] = {"width": width, "height": height, "above": above, "view": view}
    page["ascii_only"] = ascii_only
    if view.page == live_view.GPUS:
        rows = live_view.chosen(snapshot.rows, view)
        columns = live_columns.fit(snapshot.rows, width, ascii_only=ascii_only)
        above.append(_titles(columns, view, width, ascii_only=ascii_only))
        below = [] if is_low else _alerts(alerts, None if height is None else height // 5)
        return Picture(rows=rows, draw=partial(_row, columns), below=below, **page)
    if view.page == live_view.HELP:
        text = _HELP.format(sorts=", ".join(live_view.SORTS))
        return Picture(rows=text.splitlines(), draw=lambda line: [(line, "")], **page)
    if not alerts:
        return Picture(rows=["no alerts"], draw=lambda line: [(line, "dim")], **page)
    return Picture(rows=alerts, draw=_alert, **page)


def _row(columns: Sequence[Column], row: Row) -> Line:
    line: Line = []
    for column in columns:
        text, style = column.cell(row)
        text = clean(text)
        is_last = column is columns[-1]
        if not column.is_text:
            text = text.rjust(column.width)
        elif not is_last:
            text = set_cell_size(text, column.width)
        line += [(text, style)] if is_last else [(text, style), (" ", "")]
    return line


def _titles(columns: Sequence[Column], view: View, width: int, *, ascii_only: bool) -> Line:
    """Name the columns; the one that is sorted by carries an arrow."""
    up, down = ("^", "v") if ascii_only else ("▲", "▼")
    arrow = down if view.is_reversed else up
    names = {"state": "throttle, state"}
    by = names.get(view.sort, view.sort)
    cells = []
    for column in columns:
        title = column.title
        if title == by:
            title = title + arrow if column.is_text else (arrow + title)[-column.width - 1 :]
        width_of = max(column.width, len(title))
        cells.append(title.ljust(width_of) if column.is_text else title.rjust(width_of))
    text = ""
    for column, cell in zip(columns, cells, strict=True):
        spare = len(cell) - column.width  # an arrow may stand in the gap
        text = (text[:-spare] if spare > 0 and not column.is_text else text) + cell + " "
    return [(text[:width].ljust(width), "head")]


def _alerts(alerts: Sequence[Summary], num: int | None) -> list[Line]:
    """Show the worst ones, and count all."""
    if not alerts:
        return []
    shown = alerts if num is None or len(alerts) <= num else alerts[: max(1, num)]
    more = len(alerts) - len(shown)
    head = f"alerts: {by_severity(alerts)}" + (f" ({more} more: press a)" if more else "")
    return [[(head, "title")], *map(_alert, shown)]


def _alert(alert: Summary) -> Line:
    style = _ALERT_STYLES[alert.severity]
    place = [(f"{clean(alert.where)}: ", style)] if alert.where else []
    return [("! ", style), *place, (clean(alert.evidence), "" if style == "bad" else style)]


def _foot(view: View, width: int, num_rows: int, top: int, num_shown: int) -> Line:
    if view.is_typing:
        return [("filter: ", "key"), (view.words, "title"), ("_", "key"), ("  Enter, Esc", "dim")]
    if view.page != live_view.GPUS:
        keys = [("q", "back"), ("arrows", "move")]
    else:
        keys = [("q", "quit"), ("s", f"sort: {view.sort}"), ("/", view.words or "filter")]
        keys += [("p", "go on" if view.is_paused else "pause"), ("a", "alerts"), ("?", "help")]
    where = f"{top + 1 if num_shown else 0}-{top + num_shown} of {num_rows}"
    items = [[(where, "dim")], *([(key, "key"), (f" {meaning}", "")] for key, meaning in keys)]
    return live_head.fitted(items, width)


def _cut(line: Line, width: int, mark: str) -> Line:
    """Cut a line at the edge of the screen, and show that it was."""
    left = width
    kept: Line = []
    for text, style in line:
        size = cell_len(text)
        if size > left:
            shown = set_cell_size(text, max(0, left - 1)) + mark if text.strip() else ""
            return [*kept, (shown, style)] if left else kept
        kept.append((text, style))
        left -= size
    return kept
