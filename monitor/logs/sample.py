"""What one poll at a node gives: frozen values with units, None where no reading exists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

from monitor.logs import columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

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
    part: ClassVar[str]
    fields: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls, part: str) -> None:
        """Return whose columns these are: `gpu`, `host` or `rank`."""
        cls.part = part
        cls.fields = tuple(column.field for column in columns.of_part(part))

    def __init__(self, *values: int | None, **named: int | None) -> None:
        """Take readings, by name or in the order of columns."""
        named |= zip(self.fields, values, strict=False)
        self.readings = {name: value for name, value in named.items() if value is not None}
        if unknown := self.readings.keys() - _KNOWN[self.part]:
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")

    def __getattr__(self, name: str) -> int | None:
        """Give a reading; None where there is none."""
        if name not in _KNOWN[self.part]:
            raise AttributeError(name)
        return self.readings.get(name)

    def _key(self) -> tuple[object, ...]:
        return (self.readings,)

    def __eq__(self, other: object) -> bool:
        """Compare all readings."""
        return type(self) is type(other) and self._key() == other._key()

    def __hash__(self) -> int:
        """Hash by the readings."""
        return hash(frozenset(self.readings.items()))

    def __repr__(self) -> str:
        """Show all readings."""
        return f"{type(self).__name__}{self._key()}"


_KNOWN = {part: frozenset(c.field for c in columns.of_part(part)) for part in columns.PARTS}


class GpuSample(Readings, part="gpu"):
    """One reading of one GPU; `index` is None in the row of a node that has no GPU.

    `processes` are the process id (the host's) and the MiB held on this GPU, of each process that
    computes on it.
    """

    __slots__ = ("index", "processes")

    def __init__(
        self,
        index: int | None = None,
        *values: int | None,
        processes: tuple[tuple[int, int | None], ...] = (),
        **named: int | None,
    ) -> None:
        """Take readings."""
        super().__init__(*values, **named)
        self.index = index
        self.processes = processes

    def _key(self) -> tuple[object, ...]:
        return (self.index, self.readings, self.processes)


class HostSample(Readings, part="host"):
    """One reading of the machine; shares and rates are over the time since the last poll."""

    __slots__ = ()


class RankSample(Readings, part="rank"):
    """What the trainer reports beside a sample of its GPU.

    `processes` has each process on it with its rank and its MiB, as they last changed, for a `##`
    line.
    """

    __slots__ = ("processes",)

    def __init__(
        self, *values: int | None, processes: str | None = None, **named: int | None
    ) -> None:
        """Take readings."""
        super().__init__(*values, **named)
        self.processes = processes

    def _key(self) -> tuple[object, ...]:
        return (self.readings, self.processes)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a log: a GPU (or none), its host and its rank at one moment of local time."""

    time: datetime
    gpu: GpuSample
    host: HostSample
    rank: RankSample = RankSample()  # noqa: RUF009 - never changed


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of all GPUs of a node.

    `facts` are what changes rarely (driver, names, UUIDs), as (key, value) pairs for `##` lines.
    """

    gpus: tuple[GpuSample, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    is_renumbered: bool = False
    """Whether a device cgroup hides GPUs: CUDA counts only those that are here."""


class GpuSource(Protocol):
    """A source of readings of this node's GPUs."""

    def read(self) -> Reading:
        """Poll once."""
        ...


class HostSource(Protocol):
    """A source of readings of this machine."""

    def read(self) -> HostSample:
        """Poll once."""
        ...


class RankSource(Protocol):
    """Whatever knows which rank computes on which GPU, and how far it is."""

    def read(self, reading: Reading) -> Sequence[RankSample]:
        """Poll once: a sample for each GPU of a reading."""
        ...
