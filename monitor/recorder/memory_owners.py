"""What owns a GPU's memory: ranks, and processes that are of none, such as a dead job's."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from monitor.logs.sample import total

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Processes = Sequence[tuple[int, int | None]]
    """Process id and MiB, None where the driver does not report it."""
    Owned = Mapping[int, tuple[int | None, int | None]]
    """By process id, whose it is (None: no rank's) and its MiB."""

_NOBODY = "none"
_STEP_MIB, _STEP = 64, 0.1  # less is no change that is worth a line


class Owners(NamedTuple):
    """A GPU's memory by its owners; None: not known."""

    rank: int | None = None
    """That holds most of it."""
    rank_mib: int | None = None
    other_mib: int | None = None
    """What processes hold that are of no rank; None where no process computes on it."""
    words: str | None = None
    """Each process, its rank and its memory, as they last changed."""
    written: Owned = MappingProxyType({})
    """What the words are made of."""


def attribute(processes: Processes, rank_of: Callable[[int], int | None], before: Owners) -> Owners:
    """Share out a GPU's memory; `before` is what was last found of it."""
    found: dict[int, tuple[int | None, int | None]] = {}
    for pid, mib in processes:  # one in several contexts is there several times
        rank, earlier = found.get(pid, (rank_of(pid), None))
        found[pid] = rank, mib if earlier is None else earlier + (mib or 0)
    of_ranks: dict[int, list[int | None]] = {}
    others: list[int | None] = []
    for rank, mib in found.values():
        (others if rank is None else of_ranks.setdefault(rank, [])).append(mib)
    first = max(of_ranks, key=lambda one: (total(of_ranks[one]) or 0, -one), default=None)
    words, written = before.words, before.written
    if _has_changed(found, written):
        words, written = _words(found), found
    return Owners(
        rank=first,
        rank_mib=None if first is None else total(of_ranks[first]),
        other_mib=None if not found else total(others) if others else 0,
        words=words,
        written=written,
    )


def _has_changed(now: Owned, before: Owned) -> bool:
    if now.keys() != before.keys():
        return True
    return any(
        rank != before[pid][0] or _differ(mib, before[pid][1]) for pid, (rank, mib) in now.items()
    )


def _differ(now: int | None, before: int | None) -> bool:
    if now is None or before is None:
        return now is not before
    return abs(now - before) > max(_STEP_MIB, _STEP * before)


def _words(found: Owned) -> str:
    parts = [
        f"{pid}{'' if rank is None else f' rank {rank}'} {'-' if mib is None else mib} MiB"
        for pid, (rank, mib) in sorted(found.items())
    ]
    return "; ".join(parts) or _NOBODY
