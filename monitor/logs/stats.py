"""What logs amount to: how busy each GPU was, for how long it idled, what it drew and cost.

A file is counted on its own and then joined with others, so that a thousand of them need no more
memory than the largest, and several processes can share the work.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from monitor.logs import clock, columns, energy, facts, spread, terms
from monitor.logs.activity import activity
from monitor.logs.decode import NO_TIME

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from monitor.logs.parser import Place
    from monitor.logs.reader import Log
    from monitor.logs.spread import Counts, Spread

GPU_METRICS = {c.report_name: c.names for c in columns.reported() if not c.of_host}
"""What is told of a GPU, and the columns it is read from: ours, and dmon's for the same."""

HOST_METRICS = {c.report_name: c.names for c in columns.reported() if c.of_host}

COLUMNS = frozenset(name for names in (GPU_METRICS | HOST_METRICS).values() for name in names) | {
    "energy"
}
"""All that is looked at here."""

_Scalar = TypeVar("_Scalar", bound=np.generic)
_PARTIAL = 0.01
_NONE = np.empty(0, np.float32)
_SIGNS_OF_LIFE = tuple(c.report_name for c in columns.COLUMNS if c.is_sign_of_life)


@dataclass(frozen=True, slots=True)
class Idle:
    """The longest time without a pause in which a GPU did nothing."""

    duration_s: float
    begin_s: int | None
    """Since 1970; None where the log has no dates."""


@dataclass(frozen=True, kw_only=True)
class Use:
    """What a GPU did, or the GPUs of a node or a job: times and energies are then sums."""

    num_samples: int
    num_silent: int
    """Samples without any reading: the GPU or the driver was lost."""
    num_told: int
    """Samples that tell whether it was busy."""
    num_busy: int
    span_s: float | None
    """Time under watch; None where the log has no times."""
    idle_s: float | None
    energy_j: float | None
    energy_from: str | None
    """`counter`, `power` or, where a part of it is from each, `counter+power`."""
    energy_unseen_s: float | None
    """Of `span_s`, the time of which neither tells what was drawn; None where none tells."""
    first_s: int | None
    """Of the first sample, since 1970."""
    last_s: int | None
    spreads: Mapping[str, Spread | None]

    @property
    def energy_is_partial(self) -> bool:
        """Whether it is less than was drawn by more than a reading here and there."""
        return (self.energy_unseen_s or 0) > _PARTIAL * (self.span_s or 0)

    @property
    def busy_pct(self) -> float | None:
        """The share of samples in which it was busy."""
        return 100 * self.num_busy / self.num_told if self.num_told else None


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU of a node in a job."""

    place: Place
    index: int
    uuid: str | None
    """None where the log does not tell. An index that became another GPU stands once for each."""
    use: Use
    longest_idle: Idle | None
    memory_mib: int | None
    """What it has; None where the log does not tell."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node in a job; `use` is that of its GPUs, and its spreads those of the host as well."""

    place: Place
    use: Use
    gpus: tuple[Gpu, ...]
    counts: Mapping[str, Counts] = field(repr=False)
    """What the spreads were made of, to be joined with other nodes'."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """All nodes of a job."""

    name: str | None
    use: Use
    nodes: tuple[Node, ...]


def tally(logs: Sequence[Log]) -> list[Node]:
    """Count logs of the same nodes: a node for each place in them."""
    table = _Table.of(logs)
    return [_node(place, table.at(code)) for code, place in enumerate(table.places)]


def join(nodes: Sequence[Node]) -> list[Job]:
    """Put nodes together by their jobs."""
    jobs: dict[str | None, list[Node]] = {}
    for node in nodes:
        jobs.setdefault(node.place.job, []).append(node)
    return [_job(name, jobs[name]) for name in sorted(jobs, key=lambda name: (name or "", name))]


@dataclass(frozen=True)
class _Table:
    """Rows of one or several logs, in the order of time."""

    places: tuple[Place, ...]
    place: NDArray[np.int16]
    time_s: NDArray[np.int64]
    gpu: NDArray[np.int32]
    values: Mapping[str, NDArray[np.floating]]
    dated: bool
    uuids: Sequence[str]
    memory_mib: Mapping[tuple[int, str], int]
    """By index and UUID."""
    more: Mapping[str, NDArray[Any]]
    """What is the same in all rows of most logs, and then stands here once: `written_s`, the time
    to show; `interval_s`, as told; `start`, between two of which a GPU may have been another job's;
    `unit`, in `uuids`."""

    @classmethod
    def of(cls, logs: Sequence[Log]) -> _Table:
        """Join logs."""
        places = tuple(dict.fromkeys(place for log in logs for place in log.places))
        found = {
            key: [_column(log, names) for log in logs]
            for key, names in {**GPU_METRICS, **HOST_METRICS, "energy": ("energy",)}.items()
        }
        codes = [np.array([places.index(p) for p in log.places], np.int16) for log in logs]
        uuids, units = facts.uuids(logs)
        _, starts = facts.values(logs, "attempt")
        more: dict[str, Sequence[NDArray[Any]]] = {
            "unit": units,
            "start": starts,
            "interval_s": facts.intervals_s(logs),
        }
        if any(log.shift_s is not None for log in logs):
            more["written_s"] = [log.written_s for log in logs]
        made = cls(
            places,
            _joined([code[log.place] for code, log in zip(codes, logs, strict=True)]),
            _joined([log.time_s for log in logs]),
            _joined([log.gpu for log in logs]),
            {
                key: _joined([_or_nan(c, log) for c, log in zip(columns, logs, strict=True)])
                for key, columns in found.items()
                if any(column is not None for column in columns)
            },
            all(log.dated for log in logs),
            uuids,
            facts.memory_mib(logs),
            {key: _once(_joined(parts)) for key, parts in more.items()},
        )
        return made if len(logs) == 1 else made.take(np.argsort(made.time_s, kind="stable"))

    def column(self, key: str) -> NDArray[np.floating]:
        """Give a column; without it, no readings."""
        found = self.values.get(key)
        return np.full(len(self.gpu), np.nan, np.float32) if found is None else found

    @cached_property
    def activity(self) -> NDArray[np.floating]:
        """How busy the GPU was, in %; see `activity.activity`."""
        utilisation, sm_activity = self._told("sm_pct", "sm_avg_pct"), self._told("sm_active_pct")
        found = activity(utilisation, sm_activity)
        return self.column("sm_pct") if found is None else found

    def _told(self, *keys: str) -> list[NDArray[np.floating]]:
        """Give those of some columns that have readings."""
        there = [self.values[key] for key in keys if key in self.values]
        return [column for column in there if not np.isnan(column).all()]

    def at(self, code: int) -> _Table:
        """Give the rows of one place."""
        return self if len(self.places) == 1 else self.take(self.place == code)

    def of_host(self) -> _Table:
        """Give each look once: the rows of all a node's GPUs tell the same of the host."""
        if not self.gpu.size:
            return self
        return self.take(self.gpu == np.bincount(self.gpu + 1).argmax() - 1)

    def by_gpu(self) -> Iterator[tuple[int, str, _Table]]:
        """Give each GPU's index, UUID and rows; the index is -1 where there is none."""
        order = np.argsort(self.gpu.astype(np.int16), kind="stable")
        table = self.take(order)
        first = np.flatnonzero(np.diff(table.gpu, prepend=-2))
        for begin, end in zip(first, [*first[1:], len(order)], strict=True):
            index, rows = int(table.gpu[begin]), table.take(slice(begin, end))
            unit = rows.more["unit"]
            if len(unit) == 1:
                yield index, self.uuids[unit[0]], rows
                continue
            for code in dict.fromkeys(unit.tolist()):
                yield index, self.uuids[code], rows.take(unit == code)

    def take(self, which: NDArray[np.generic] | slice) -> _Table:
        """Choose rows."""
        values = {name: column[which] for name, column in self.values.items()}
        more = {k: c if len(c) == 1 else c[which] for k, c in self.more.items()}
        place, time_s, gpu = self.place[which], self.time_s[which], self.gpu[which]
        return replace(self, place=place, time_s=time_s, gpu=gpu, values=values, more=more)


def _column(log: Log, names: Sequence[str]) -> NDArray[np.floating] | None:
    return next((log.values[name] for name in names if name in log.values), None)


def _or_nan(column: NDArray[np.floating] | None, log: Log) -> NDArray[np.floating]:
    return np.full(log.num_rows, np.nan, np.float32) if column is None else column


def _once(column: NDArray[Any]) -> NDArray[Any]:
    """Keep a column that never changes as one number."""
    first = column[:1]
    is_one = first.size and (
        (column == first).all() or (np.isnan(first[0]) and np.isnan(column).all())
    )
    return first if is_one else column


def _joined(parts: Sequence[NDArray[_Scalar]]) -> NDArray[_Scalar]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _node(place: Place, table: _Table) -> Node:
    gpus: list[Gpu] = []
    counted: list[dict[str, Counts]] = []
    for index, uuid, rows in table.by_gpu():
        counted.append({key: spread.count(rows.values.get(key, _NONE)) for key in GPU_METRICS})
        if index >= 0:
            gpus.append(_gpu(place, index, uuid, rows, counted[-1]))
    counts = {key: spread.merge([mine[key] for mine in counted]) for key in GPU_METRICS}
    of_host = table.of_host()
    counts |= {key: spread.count(of_host.values.get(key, _NONE)) for key in HOST_METRICS}
    uses = [gpu.use for gpu in gpus] or [_use(table, _steps_s(table), {})]
    return Node(place=place, use=_sum(uses, counts), gpus=tuple(gpus), counts=counts)


def _gpu(place: Place, index: int, uuid: str, rows: _Table, counts: Mapping[str, Counts]) -> Gpu:
    steps_s = _steps_s(rows)
    return Gpu(
        place=place,
        index=index,
        uuid=None if uuid == facts.UNKNOWN else uuid,
        use=_use(rows, steps_s, {key: found.spread() for key, found in counts.items()}),
        longest_idle=_longest_idle(rows, steps_s),
        memory_mib=rows.memory_mib.get((index, uuid)),
    )


def _use(rows: _Table, steps_s: NDArray[np.float64], spreads: Mapping[str, Spread | None]) -> Use:
    active = rows.activity
    timed = bool((rows.time_s != NO_TIME).all())
    signs = [rows.values[key] for key in _SIGNS_OF_LIFE if key in rows.values]
    silent = np.logical_and.reduce([np.ones(len(active), np.bool_), *map(np.isnan, signs)])
    start = np.broadcast_to(rows.more["start"], len(steps_s))
    used = energy.used(rows.column("energy"), rows.column("power_w"), steps_s, start)
    written_s = rows.more.get("written_s", rows.time_s)
    told = ~np.isnan(active)
    is_idle = active <= terms.BUSY_PCT
    return Use(
        num_samples=len(active),
        num_silent=int(silent.sum()),
        num_told=int(told.sum()),
        num_busy=int(told.sum() - is_idle.sum()),
        span_s=float(np.nansum(steps_s)) if timed else None,
        idle_s=float(np.nansum(steps_s[is_idle])) if timed and told.any() else None,
        energy_j=used.joules,
        energy_from=used.source,
        energy_unseen_s=used.unseen_s,
        first_s=int(written_s[0]) if timed and rows.dated else None,
        last_s=int(written_s[-1]) if timed and rows.dated else None,
        spreads=spreads,
    )


def _steps_s(rows: _Table) -> NDArray[np.float64]:
    """Time that each sample speaks for: since the one before; NaN after a gap."""
    if (rows.time_s == NO_TIME).any():
        return np.full(len(rows.time_s), np.nan)
    return clock.steps_s(rows.time_s, rows.more["interval_s"])


def _longest_idle(rows: _Table, steps_s: NDArray[np.float64]) -> Idle | None:
    """Find the longest stretch in which each sample says idle; a gap ends it."""
    is_idle = (rows.activity <= terms.BUSY_PCT) & ~np.isnan(steps_s)
    idle_s = np.cumsum(np.where(is_idle, steps_s, 0))
    before_s = np.maximum.accumulate(np.where(is_idle, 0, idle_s))
    lasted_s = idle_s - before_s
    if not lasted_s.any():
        return None
    last = int(lasted_s.argmax())
    begin_s = int(rows.time_s[last] - lasted_s[last]) if rows.dated else None
    return Idle(float(lasted_s[last]), begin_s)


def _sum(uses: Sequence[Use], counts: Mapping[str, Counts]) -> Use:
    return Use(
        num_samples=sum(use.num_samples for use in uses),
        num_silent=sum(use.num_silent for use in uses),
        num_told=sum(use.num_told for use in uses),
        num_busy=sum(use.num_busy for use in uses),
        span_s=_total([use.span_s for use in uses]),
        idle_s=_total([use.idle_s for use in uses]),
        energy_j=_total([use.energy_j for use in uses]),
        energy_from=_sources(use.energy_from for use in uses),
        energy_unseen_s=_total([use.energy_unseen_s for use in uses]),
        first_s=min((u.first_s for u in uses if u.first_s is not None), default=None),
        last_s=max((u.last_s for u in uses if u.last_s is not None), default=None),
        spreads={key: found.spread() for key, found in counts.items()},
    )


def _total(values: Sequence[float | None]) -> float | None:
    told = [value for value in values if value is not None]
    return sum(told) if told else None


def _sources(sources: Iterator[str | None]) -> str | None:
    parts = {part for source in sources if source for part in source.split("+")}
    return "+".join(sorted(parts)) or None


def _job(name: str | None, nodes: Sequence[Node]) -> Job:
    counts = {
        key: spread.merge([node.counts[key] for node in nodes])
        for key in (*GPU_METRICS, *HOST_METRICS)
    }
    return Job(name=name, use=_sum([node.use for node in nodes], counts), nodes=tuple(nodes))


_Used = TypeVar("_Used", "Gpu", "Node")


def worst_first(used: Sequence[_Used]) -> list[_Used]:
    """Sort: what is silent, then what is least busy, then by name."""
    return sorted(used, key=_badness)


def _badness(used: Gpu | Node) -> tuple[float, float, str, int]:
    use = used.use
    index = used.index if isinstance(used, Gpu) else -1
    busy = -1.0 if use.busy_pct is None else use.busy_pct
    return (-use.num_silent / max(1, use.num_samples), round(busy, 3), used.place.host, index)
