"""Where a time axis has its numbers: at round times of the day, as the nodes' clocks show it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monitor.analysis.axis import Axis

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400
_STEPS_S = (
    1, 2, 5, 10, 15, 30,
    *(_MINUTE_S * minutes for minutes in (1, 2, 5, 10, 15, 30)),
    *(_HOUR_S * hours for hours in (1, 2, 3, 6, 12)),
    *(_DAY_S * days for days in (1, 2, 7, 14, 28, 91, 182, 364)),
)  # fmt: skip


def ticks(axis: Axis, most: int) -> tuple[list[float], list[str]]:
    """Choose at most `most` moments, seconds since 1970, and their format."""
    span_s = axis.end_s - axis.begin_s
    days_s = _DAY_S * math.ceil(span_s / most / _DAY_S)
    step_s = next((s for s in _STEPS_S if span_s / s <= most), days_s)
    shift_s = axis.offset.total_seconds() if axis.offset else 0.0
    first = math.ceil((axis.begin_s + shift_s) / step_s) * step_s - shift_s
    places = [first + step_s * i for i in range(int((axis.end_s - first) / step_s) + 1)]
    form = "%H:%M:%S" if step_s < _MINUTE_S else "%H:%M" if step_s < _DAY_S else "%d %b"
    return places, [_words(axis, place, form) for place in places]


def _words(axis: Axis, place: float, form: str) -> str:
    moment = axis.local(place)
    is_midnight = moment.hour == moment.minute == moment.second == 0
    if axis.dated and is_midnight and form == "%H:%M":
        form = "%H:%M\n%d %b"
    return f"{moment:{form}}"
