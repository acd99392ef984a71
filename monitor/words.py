"""Words that agree with their numbers."""

from __future__ import annotations


def counted(num: object, noun: str) -> str:
    """Return `1 node` or `2 nodes`, rounded; what a damaged file has for a number, as it is."""
    told = f"{num:,.0f}" if isinstance(num, int | float) else str(num)
    return f"{told} {noun}{'' if told == '1' else 's'}"
