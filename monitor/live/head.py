"""The upper lines of a live view: the run, how far it is, and all GPUs together."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING

from monitor.live import sparkline
from monitor.live.snapshot import GONE, LOST, STATES, total
from monitor.words import NONE
from rundir.text import counted, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitor.live.columns import Span
    from monitor.live.run import Progress
    from monitor.live.snapshot import Row, Snapshot

_GAP = ("  ", "")
_W_PER_KW = 1000
_OUTCOME_STYLES = {"running": "good", "finished": "good", "starting": "", "stopped": "warn"}
_MAX_BAR, _MAX_LOSSES = 20, 16
_WIDE = 110


def title(snapshot: Snapshot, width: int, *, is_paused: bool) -> list[Span]:
    """Write what is watched and its state; the time of day at the right."""
    line: list[Span] = [(printable(snapshot.name), "title")]
    progress = snapshot.progress
    if progress is not None:
        style = _OUTCOME_STYLES.get(progress.outcome, "bad" if progress.is_over else "warn")
        line += [_GAP, (printable(progress.outcome), style)]
        if progress.attempt is not None and progress.attempt > 1:
            line += [_GAP, (f"start {progress.attempt}", "")]
        if progress.num_ranks is not None:
            line += [_GAP, (counted(progress.num_ranks, "rank"), "")]
    if is_paused:
        line += [_GAP, (" PAUSED ", "pause")]
    used = sum(len(text) for text, _ in line)
    pad = width - used - len(snapshot.clock)
    return [*line, (" " * pad, ""), (snapshot.clock, "dim")] if pad > 0 else line


def progress_line(progress: Progress, width: int, *, ascii_only: bool) -> list[Span]:
    """Write step, loss, speed and time left, as far as reported."""
    if progress.step is None:
        return [("no step reported yet", "dim")]
    items = [_steps(progress, progress.step, width, ascii_only=ascii_only)]
    if progress.loss is not None:
        loss = [("loss ", "dim"), (f"{progress.loss:.4f}", "title")]
        if width >= _WIDE:
            loss += [(" ", ""), (_losses(progress.losses, ascii_only=ascii_only), "trend")]
        items.append(loss)
    items += _speed(progress)
    if progress.left_s is not None and progress.outcome == "running":
        left = timedelta(seconds=round(progress.left_s))
        items.append([(str(left), "title"), (" left", "dim")])
    if progress.test_accuracy is not None:
        items.append([("accuracy ", "dim"), (f"{100 * progress.test_accuracy:.2f} %", "")])
    if progress.data_wait_pct is not None:
        items.append([("data wait ", "dim"), (f"{progress.data_wait_pct:.0f} %", "")])
    return fitted(items, width)


def _speed(progress: Progress) -> list[list[Span]]:
    """Write it in tokens where there are any: samples/s are the same by a constant factor."""
    items: list[list[Span]] = []
    if progress.tokens_per_s is not None:
        items.append([(f"{progress.tokens_per_s:.0f}", "title"), (" tokens/s", "dim")])
    elif progress.samples_per_s is not None:
        items.append([(f"{progress.samples_per_s:.0f}", "title"), (" samples/s", "dim")])
    if progress.mfu_pct is not None:
        items.append([("MFU ", "dim"), (f"{progress.mfu_pct:.1f} %", "title")])
    return items


def _steps(progress: Progress, step: int, width: int, *, ascii_only: bool) -> list[Span]:
    if not progress.num_steps:
        return [("step ", "dim"), (f"{step}", "title")]
    share = min(1.0, step / progress.num_steps)
    bar = _bar(share, min(_MAX_BAR, width // 10), ascii_only=ascii_only)
    return [
        ("step ", "dim"),
        (f"{step}/{progress.num_steps}", "title"),
        (f" {bar}", "good"),
        (f" {math.floor(100 * share)} %", ""),
    ]


def sum_line(rows: Sequence[Row], width: int) -> list[Span]:
    """Sum up all GPUs."""
    if not rows:
        return [("no samples yet: waiting for logs", "warn")]
    of_all = total(rows)
    places = counted(of_all.num_nodes, "node")
    if of_all.num_gpus:
        places += f", {counted(of_all.num_gpus, 'GPU')}"
    what = "util" if of_all.num_gpus else "processors"
    items: list[list[Span]] = [[(places, "")]]
    items.append([(f"{what} ", "dim"), (_pct(of_all.util_pct), "title")])
    items.append([("memory ", "dim"), (_pct(of_all.mem_share_pct), "title")])
    if of_all.power_w is not None:
        kilo = of_all.power_w >= _W_PER_KW
        text = f"{of_all.power_w / _W_PER_KW:.1f} kW" if kilo else f"{of_all.power_w:.0f} W"
        items.append([("power ", "dim"), (text, "title")])
    if of_all.temp_c is not None:
        items.append([("hottest ", "dim"), (f"{of_all.temp_c:.0f} C", "title")])
    for state in STATES:
        num = sum(state in row.states for row in rows)
        if num:
            items.append([(f"{num} {state}", "bad" if state in (GONE, LOST) else "warn")])
    return fitted(items, width)


def fitted(items: Sequence[list[Span]], width: int) -> list[Span]:
    """Put items on a line, as many as fit as a whole."""
    line = [*items[0]]
    used = sum(len(text) for text, _ in line)
    for item in items[1:]:
        used += len(_GAP[0]) + sum(len(text) for text, _ in item)
        if used > width:
            break
        line += [_GAP, *item]
    return line


def _pct(value: float | None) -> str:
    return NONE if value is None else f"{value:.0f} %"


def _bar(share: float, width: int, *, ascii_only: bool) -> str:
    full, empty = ("#", "-") if ascii_only else ("█", "░")
    done = int(share * width)
    return full * done + empty * (width - done)


def _losses(losses: Sequence[float], *, ascii_only: bool) -> str:
    """Draw the losses between their smallest and their largest."""
    shown = losses[-_MAX_LOSSES:]
    finite = [loss for loss in shown if math.isfinite(loss)]
    low = min(finite, default=0.0)
    top = max(finite, default=1.0) - low
    moved = [loss - low if math.isfinite(loss) else math.nan for loss in shown]
    return sparkline.sparkline(moved, len(moved), top or 1.0, ascii_only=ascii_only)
