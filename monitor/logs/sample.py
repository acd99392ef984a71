"""What one poll at a node gives: frozen values with units, None where no reading exists."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, TypeVar

from monitor.logs import columns

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

NO_READINGS = "no readings"
"""So begins the fact `gpus`, and why, where otherwise the number of GPUs stands."""

_Number = TypeVar("_Number", int, float)


def total(readings: Iterable[_Number | None]) -> _Number | None:
    """Add up the readings that exist; None if none does."""
    known = [one for one in readings if one is not None]
    return sum(known) if known else None


class Readings:
    """What one poll gives for the columns of one part of a row: whole numbers, cut as drivers do.

    Fields are those of the registry; one that was not given, or is None, has no reading. A plain
    mapping, for an object of so many fields costs three times as much to make, at each poll.
    """

    __slots__ = ("readings",)
    fields: ClassVar[tuple[str, ...]]

    def __init__(self, *values: int | None, **named: int | None) -> None:
        """Take readings, by name or in the order of columns."""
        named |= zip(self.fields, values, strict=False)
        if unknown := named.keys() - {*self.fields}:
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
        self.readings = {name: value for name, value in named.items() if value is not None}

    def __getattr__(self, name: str) -> int | None:
        """Give a reading; None where there is none."""
        if name not in self.fields:
            raise AttributeError(name)
        return self.readings.get(name)

    def _key(self) -> tuple[object, ...]:
        return (*(getattr(self, name) for name in self.__slots__), self.readings)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._key() == other._key()

    __hash__ = None  # type: ignore[assignment] # it holds a mapping

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self._key()}"


class GpuSample(Readings):
    """One reading of one GPU; `index` is None in the row of a node that has no GPU.

    `processes` are the process id (the host's) and the MiB held on this GPU, of each process that
    computes on it.
    """

    __slots__ = ("index", "processes")
    fields = columns.fields_of("gpu")

    def __init__(
        self,
        index: int | None = None,
        *values: int | None,
        processes: tuple[tuple[int, int | None], ...] = (),
        **named: int | None,
    ) -> None:
        super().__init__(*values, **named)
        self.index = index
        self.processes = processes


class HostSample(Readings):
    """One reading of the machine; shares and rates are over the time since the last poll."""

    __slots__ = ()
    fields = columns.fields_of("host")


class RankSample(Readings):
    """What the trainer reports beside a sample of its GPU.

    `processes` has each process on it with its rank and its MiB, as they last changed, for a `##`
    line.
    """

    __slots__ = ("processes",)
    fields = columns.fields_of("rank")

    def __init__(
        self, *values: int | None, processes: str | None = None, **named: int | None
    ) -> None:
        super().__init__(*values, **named)
        self.processes = processes


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a log: a GPU (or none), its host and its rank at one moment of local time."""

    time: datetime
    gpu: GpuSample
    host: HostSample
    rank: RankSample = field(default_factory=RankSample)


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of all GPUs of a node.

    `facts` are what changes rarely (driver, names, UUIDs), as (key, value) pairs for `##` lines.
    """

    gpus: tuple[GpuSample, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    is_renumbered: bool = False
    """Whether a device cgroup hides GPUs: CUDA counts only those that are here."""
