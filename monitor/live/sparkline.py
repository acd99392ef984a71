"""A row of numbers as a row of small bars."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"
NO_BAR = "·"
_ASCII_BARS = "_.:-=+*#"
_ASCII_NO_BAR = " "


def sparkline(values: Sequence[float], width: int, top: float = 100.0, *, ascii_only: bool) -> str:
    """Draw the last `width` values, each as a bar between 0 and `top`; the newest is rightmost.

    A value that does not exist (NaN) is a dot and not a bar of height 0; where there are fewer
    values than places, the left ones are blank.
    """
    bars, none = (_ASCII_BARS, _ASCII_NO_BAR) if ascii_only else (BARS, NO_BAR)
    shown = values[-width:] if width > 0 else ()
    drawn = "".join(none if math.isnan(v) else bars[_height(v / top)] for v in shown)
    return drawn.rjust(max(0, width))


def _height(share: float) -> int:
    return min(len(BARS) - 1, max(0, int(share * len(BARS))))
