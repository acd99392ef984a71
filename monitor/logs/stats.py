"""What logs amount to: how busy each GPU was, for how long it idled, what it drew and cost.

A file is counted on its own and then joined with others, so that a thousand of them need no more
memory than the largest, and several processes can share the work.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from monitor.logs import clock, columns, constants, energy, facts, percentiles, series
from monitor.logs.sample import total
from monitor.words import natural

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from monitor.logs.log import Log
    from monitor.logs.log_events import Place
    from monitor.logs.percentiles import Counts, Spread
    from monitor.logs.series import GpuSeries

GPU_METRICS = {c.report_name: c.names for c in columns.reported() if not c.of_host}
"""What is known of a GPU, and the columns it is read from: ours, and dmon's for the same."""

HOST_METRICS = {c.report_name: c.names for c in columns.reported() if c.of_host}

COLUMNS = frozenset(name for names in (GPU_METRICS | HOST_METRICS).values() for name in names) | {
    "energy"
}
"""All that is read here."""

_PARTIAL = 0.01
_ABSENT = np.float32(np.nan)


@dataclass(frozen=True, slots=True)
class Idle:
    """The longest time without a pause in which a GPU did nothing."""

    duration_s: float
    begin_s: int | None
    """Since 1970, as the log has it; None where the log has no dates."""


@dataclass(frozen=True, kw_only=True)
class Use:
    """What a GPU did, or the GPUs of a node or a job: times and energies are then sums."""

    num_samples: int
    num_silent: int
    """Samples without any reading: the GPU or the driver was lost."""
    num_known: int
    """Samples that show whether it was busy."""
    num_busy: int
    span_s: float | None
    """Time under watch; None where the log has no times."""
    idle_s: float | None
    energy_j: float | None
    energy_from: str | None
    """`counter`, `power` or, where a part of it is from each, `counter+power`."""
    energy_unseen_s: float | None
    """Of `span_s`, the time without a reading of either; None without a GPU."""
    first_s: int | None
    """Of the first sample, since 1970."""
    offset: timedelta
    """Of the log's local time from UTC; none where `first_s` is local already."""
    last_s: int | None
    spreads: Mapping[str, Spread | None]

    @property
    def energy_is_partial(self) -> bool:
        """Whether it is less than was drawn by more than a reading here and there."""
        return (self.energy_unseen_s or 0) > _PARTIAL * (self.span_s or 0)

    @property
    def busy_pct(self) -> float | None:
        """The share of samples in which it was busy."""
        return 100 * self.num_busy / self.num_known if self.num_known else None


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU of a node in a job."""

    place: Place
    index: int
    uuid: str | None
    """None where it is unknown. An index that became another GPU stands once for each."""
    use: Use
    longest_idle: Idle | None
    memory_mib: int | None
    """What it has; None where the log does not state it."""


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

    @property
    def gpus(self) -> list[Gpu]:
        """Those of all nodes."""
        return [gpu for node in self.nodes for gpu in node.gpus]


def tally(logs: Sequence[Log]) -> list[Node]:
    """Count logs of the same nodes: a node for each place in them."""
    places: dict[Place, list[GpuSeries]] = {}
    for one in series.split(logs):
        places.setdefault(one.place, []).append(one)
    return [_node(place, gpus) for place, gpus in places.items()]


def join(nodes: Sequence[Node]) -> list[Job]:
    """Put nodes together by their jobs."""
    jobs: dict[str | None, list[Node]] = {}
    for node in nodes:
        jobs.setdefault(node.place.job, []).append(node)
    return [
        _job(name, jobs[name])
        for name in sorted(jobs, key=lambda name: (name is not None, natural(name or "")))
    ]


def _node(place: Place, gpus: Sequence[GpuSeries]) -> Node:
    units = series.by_unit(gpus)
    counted = [_counts(gpu, GPU_METRICS) for gpu in units]
    counts = {key: percentiles.merge([mine[key] for mine in counted]) for key in GPU_METRICS}
    of_host = [_counts(one, HOST_METRICS) for one in series.of_hosts(gpus)]
    counts |= {key: percentiles.merge([mine[key] for mine in of_host]) for key in HOST_METRICS}
    made = [
        _gpu(one, mine) for one, mine in zip(units, counted, strict=True) if one.gpu is not None
    ]
    uses = [gpu.use for gpu in made] or [_use(one, _steps_s(one), {}) for one in units]
    return Node(place=place, use=_sum(uses, counts), gpus=tuple(made), counts=counts)


def _counts(gpu: GpuSeries, metrics: Mapping[str, Sequence[str]]) -> dict[str, Counts]:
    return {key: percentiles.count(_readings(gpu, names)) for key, names in metrics.items()}


def _readings(gpu: GpuSeries, names: Sequence[str]) -> NDArray[np.floating]:
    """Give the readings of a column under any of its names; without it, none."""
    return _or_absent(gpu, gpu.highest(*names))


def _or_absent(gpu: GpuSeries, found: NDArray[np.floating] | None) -> NDArray[np.floating]:
    return np.broadcast_to(_ABSENT, gpu.num_samples) if found is None else found


def _gpu(gpu: GpuSeries, counts: Mapping[str, Counts]) -> Gpu:
    steps_s = _steps_s(gpu)
    memory_mib = gpu.number("memory_mib")
    return Gpu(
        place=gpu.place,
        index=-1 if gpu.gpu is None else gpu.gpu,
        uuid=None if gpu.uuid == facts.UNKNOWN else gpu.uuid,
        use=_use(gpu, steps_s, {key: found.spread() for key, found in counts.items()}),
        longest_idle=_longest_idle(gpu, steps_s),
        memory_mib=None if memory_mib is None else int(memory_mib),
    )


def _use(gpu: GpuSeries, steps_s: NDArray[np.float64], spreads: Mapping[str, Spread | None]) -> Use:
    active = _or_absent(gpu, gpu.activity)
    timed = not np.isnan(gpu.time_s).any()
    counter_j, power_w = _readings(gpu, ("energy",)), _readings(gpu, ("pwr",))
    used = energy.used(counter_j, power_w, steps_s, gpu.starts)
    known = ~np.isnan(active)
    is_idle = active <= constants.BUSY_PCT
    return Use(
        num_samples=gpu.num_samples,
        num_silent=int(gpu.is_silent.sum()),
        num_known=int(known.sum()),
        num_busy=int(known.sum() - is_idle.sum()),
        span_s=float(np.nansum(steps_s)) if timed else None,
        idle_s=float(np.nansum(steps_s[is_idle])) if timed and known.any() else None,
        energy_j=used.joules,
        energy_from=used.source,
        energy_unseen_s=None if gpu.gpu is None else used.unseen_s,
        first_s=int(gpu.written_s[0]) if timed and gpu.is_dated else None,
        offset=gpu.offset,
        last_s=int(gpu.written_s[-1]) if timed and gpu.is_dated else None,
        spreads=spreads,
    )


def _steps_s(gpu: GpuSeries) -> NDArray[np.float64]:
    """Time that each sample stands for: since the one before; NaN after a gap."""
    if np.isnan(gpu.time_s).any():
        return np.full(gpu.num_samples, np.nan)
    return clock.steps_s(gpu.time_s, gpu.nominal_s)


def _longest_idle(gpu: GpuSeries, steps_s: NDArray[np.float64]) -> Idle | None:
    """Find the longest stretch in which each sample says idle; a gap ends it."""
    is_idle = (_or_absent(gpu, gpu.activity) <= constants.BUSY_PCT) & ~np.isnan(steps_s)
    idle_s = np.cumsum(np.where(is_idle, steps_s, 0))
    before_s = np.maximum.accumulate(np.where(is_idle, 0, idle_s))
    lasted_s = idle_s - before_s
    if not lasted_s.any():
        return None
    last = int(lasted_s.argmax())
    first = int(np.flatnonzero(~is_idle[:last])[-1])  # the first sample has no time before it
    return Idle(float(lasted_s[last]), int(gpu.written_s[first]) if gpu.is_dated else None)


def _sum(uses: Sequence[Use], counts: Mapping[str, Counts]) -> Use:
    firsts = [(use.first_s, use.offset) for use in uses if use.first_s is not None]
    first_s, offset = min(firsts, default=(None, timedelta()))
    return Use(
        num_samples=sum(use.num_samples for use in uses),
        num_silent=sum(use.num_silent for use in uses),
        num_known=sum(use.num_known for use in uses),
        num_busy=sum(use.num_busy for use in uses),
        span_s=total(use.span_s for use in uses),
        idle_s=total(use.idle_s for use in uses),
        energy_j=total(use.energy_j for use in uses),
        energy_from=_sources(use.energy_from for use in uses),
        energy_unseen_s=total(use.energy_unseen_s for use in uses),
        first_s=first_s,
        offset=offset,
        last_s=max((u.last_s for u in uses if u.last_s is not None), default=None),
        spreads={key: found.spread() for key, found in counts.items()},
    )


def _sources(sources: Iterator[str | None]) -> str | None:
    parts = {part for source in sources if source for part in source.split("+")}
    return "+".join(sorted(parts)) or None


def _job(name: str | None, nodes: Sequence[Node]) -> Job:
    counts = {
        key: percentiles.merge([node.counts[key] for node in nodes])
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
