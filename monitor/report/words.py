"""A job in words, and numbers as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from monitor.words import MIB_PER_GIB, NONE, and_more, minutes
from rundir.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitor.logs.stats import Gpu, Job

J_PER_KWH = 3.6e6
_J_PER_KJ = 1e3
_G_PER_KG = 1000

IDLE_S = 120
"""An idle time shorter than this is not worth a word."""

IDLE_SHARE = 0.05
"""Nor one of less than this share of the time under watch."""

ROOM_SHARE = 0.6
"""A memory peak below this share of what a GPU has leaves room for a larger batch."""

FULL_SHARE = 0.97
"""One above this share is nearly full."""


def headline(job: Job) -> str:
    """Say in one line how a job used its GPUs."""
    gpus = job.gpus
    if not gpus:
        return "no GPU was seen"
    busy = job.use.busy_pct
    parts = ["nothing tells how busy it was" if busy is None else f"{busy:.0f} % busy"]
    parts += filter(None, (_silent(gpus), _idle(gpus), _memory(job, gpus)))
    return "; ".join(parts)


def _silent(gpus: Sequence[Gpu]) -> str | None:
    lost = [gpu for gpu in gpus if gpu.use.num_silent]
    if not lost:
        return None
    worst = max(lost, key=lambda gpu: gpu.use.num_silent / gpu.use.num_samples)
    use = worst.use
    note = f"{_name(worst)} silent in {use.num_silent} of {counted(use.num_samples, 'sample')}"
    return note + and_more(len(lost) - 1, "GPU")


def _idle(gpus: Sequence[Gpu]) -> str | None:
    idle_s = [(gpu.longest_idle.duration_s, gpu) for gpu in gpus if gpu.longest_idle]
    long = [(s, gpu) for s, gpu in idle_s if s >= max(IDLE_S, IDLE_SHARE * (gpu.use.span_s or 0))]
    if not long:
        return None
    longest_s, worst = max(long, key=lambda pair: pair[0])
    return f"{_name(worst)} idle for {minutes(longest_s)}{and_more(len(long) - 1, 'GPU')}"


def _memory(job: Job, gpus: Sequence[Gpu]) -> str | None:
    spread = job.use.spreads.get("fb_used_mib")
    if spread is None:
        return None
    peak = f"memory peak {spread.peak / MIB_PER_GIB:.0f}"
    totals = {gpu.memory_mib for gpu in gpus}
    total = totals.pop() if len(totals) == 1 else None
    if not total:
        return f"{peak} GiB"
    note = f"{peak} of {total / MIB_PER_GIB:.0f} GiB"
    if spread.peak < ROOM_SHARE * total:
        return f"{note}: the batch could be larger"
    return f"{note}: nearly full" if spread.peak > FULL_SHARE * total else note


def _name(gpu: Gpu) -> str:
    return f"node {gpu.place.host} GPU {gpu.index}"


def moment(seconds: int, offset: timedelta) -> str:
    """Write a time since 1970 as the log has it, by its offset from UTC."""
    return (datetime.fromtimestamp(seconds, UTC) + offset).strftime("%Y-%m-%d %H:%M")


def energy(joules: float | None, source: str | None, *, is_partial: bool) -> str:
    """Write an energy; `~` where it is not a counter's, `>` where some of it was not seen."""
    if joules is None:
        return NONE
    sign = ">" if is_partial else "" if source == "counter" else "~"
    if joules < _J_PER_KJ:
        return f"{sign}{joules:.0f} J"
    if joules < J_PER_KWH / 100:
        return f"{sign}{joules / _J_PER_KJ:.1f} kJ"
    kwh = joules / J_PER_KWH
    return f"{sign}{kwh:.{_digits(kwh)}f} kWh"


def co2(grams: float) -> str:
    """Write a mass of CO2."""
    if grams < _G_PER_KG:
        return f"{grams:.0f} g CO2"
    return f"{grams / _G_PER_KG:.{_digits(grams / _G_PER_KG)}f} kg CO2"


def _digits(value: float) -> int:
    return 2 if value < 10 else 1 if value < 100 else 0  # noqa: PLR2004 - three digits in all
