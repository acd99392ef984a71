"""What is busy and what is a gap: the same for recorder, live view and readers."""

from __future__ import annotations

BUSY_PCT = 5
"""A GPU counts as busy in a sample in which its utilisation is above this."""

GAP_INTERVALS = 5
"""A log that has not grown for more than this many usual intervals has a gap."""


def longest_s(usual_s: float) -> float:
    """Return how long a sample may stand for, where one is usual every so often: no gap is shorter.

    Intervals below a second are those of a poll by hand, which a moment's delay must not tear.
    """
    return GAP_INTERVALS * max(1.0, usual_s)


LATEST_S = 7_258_118_400
"""The year 2200: a later time is damage. Clocks begin in 1970."""
