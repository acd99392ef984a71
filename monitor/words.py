"""Numbers and names as people write them."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING

from rundir.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NONE = "-"
"""A reading that does not exist."""

MIB_PER_GIB = 1024

_NUM_HOSTS = 2**14  # whose names are kept taken apart: a live view sorts them twice a second


def minutes(seconds: float | None) -> str:
    """Write a duration for people: 41 min, 3 h 20 min, 25 s."""
    if seconds is None:
        return NONE
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{seconds:.0f} s"
    whole = round(seconds / 60)
    hours, rest = divmod(whole, 60)
    return f"{hours} h {rest:02d} min" if hours else f"{rest} min"


def brief(seconds: float | None) -> str:
    """Write a duration for a narrow column: 41m, 3h20m, 25s."""
    return minutes(seconds).replace(" min", "m").replace(" h ", "h").replace(" s", "s")


def and_more(num: int, noun: str) -> str:
    """Write how many more there are: ` (and 2 more gaps)`; empty for none."""
    return f" (and {counted(num, f'more {noun}')})" if num else ""


def host_list(names: Iterable[str]) -> str:
    """Fold names as Slurm does: gpu[001-004,007], login."""
    split = [re.fullmatch(r"(.*?)(\d*)", name, re.DOTALL) for name in sorted({*names})]
    found = [(m[1], len(m[2]), m[2]) for m in split if m]
    parts = []
    for (stem, width), group in groupby(sorted(found), key=lambda part: part[:2]):
        numbers = [int(number) for *_, number in group] if width else []
        ranges = _ranges(numbers, width)
        is_single = len(numbers) == 1
        parts.append(stem + (ranges if is_single or not ranges else f"[{ranges}]"))
    return ",".join(parts)


def _ranges(numbers: Sequence[int], width: int) -> str:
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    ends = [[f"{number:0{width}}" for number in dict.fromkeys(pair)] for pair in ranges]
    return ",".join("-".join(pair) for pair in ends)


@lru_cache(_NUM_HOSTS)
def natural(host: str) -> tuple[tuple[int, int | str], ...]:
    """Sort key that puts node2 before node10."""
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+|[0-9]+", host)
    return tuple(
        (0, int(p)) if p.isascii() and p.isdigit() and len(p) < 19 else (1, p)  # noqa: PLR2004
        for p in parts
    )
