"""A run by time: each GPU's readings by time, what happened, the metrics."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from monitor.logs import clock, facts, files, gutil, reader
from monitor.logs.columns import SIGNS_OF_LIFE
from monitor.logs.decode import NO_TIME
from monitor.logs.facts import UNKNOWN
from monitor.logs.files import is_run, lines_of
from monitor.logs.log_events import Place
from rundir import paths as run_files
from rundir.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from monitor.logs.log import Log
    from monitor.logs.log_events import LogEvent

    _Key = tuple[str, str | None, int, str]


@dataclass(frozen=True)
class GpuSeries:
    """The readings of one GPU of a node in a job, in the order of time.

    `time_s` (samples,) counts from 1970: in UTC where the log states its offset, in local time
    where it does not, from midnight where rows carry no date; NaN where they carry no time. Where
    the node's clock was set, what the log has written is `shift_s` less.
    `values` has the log's own columns by name, (samples,) each, in the log's units; a NaN is a
    reading that does not exist. They are not to be written to. `facts` are the `##` lines of the
    logs, those of the node's other GPUs as well. `gpu` is None for the rows of a node without one.
    """

    host: str
    gpu: int | None
    job: str | None
    time_s: NDArray[np.float64]
    values: Mapping[str, NDArray[np.floating]]
    facts: Mapping[str, str]
    shift_s: NDArray[np.int64] | int = 0
    nominal_s: NDArray[np.float64] | float = math.nan
    """The interval that the log states; NaN where it states none."""
    start: NDArray[np.int32] | int = 0
    """Another number after each start of the job."""
    uuid: str = UNKNOWN
    """An index that became another GPU has a series for each."""
    is_dated: bool = True
    offset: timedelta = timedelta()
    """Of local time from UTC at its first sample; none where the log states none."""

    @property
    def unit(self) -> tuple[Place, str | int | None]:
        """What tells it from all other GPUs: its UUID, without one its index."""
        return self.place, self.gpu if self.uuid == UNKNOWN else self.uuid

    @property
    def written_s(self) -> NDArray[np.float64]:
        """The times as the log has them, which are those to show."""
        return self.time_s - self.shift_s

    @property
    def num_samples(self) -> int:
        """How many samples there are."""
        return len(self.time_s)

    @property
    def starts(self) -> NDArray[np.int32]:
        """The number of the job's start, of each sample."""
        return np.broadcast_to(np.asarray(self.start, np.int32), self.num_samples)

    @cached_property
    def interval_s(self) -> float:
        """The usual time between two samples; NaN where there are no times."""
        steps_s = np.diff(self.time_s)
        return float(np.median(steps_s)) if steps_s.size else math.nan

    @cached_property
    def steps_s(self) -> NDArray[np.float32]:
        """The time that each sample stands for, since the one before; NaN across a gap.

        That is at the first one, and after a gap: see `clock.steps_s`.
        """
        steps_s: NDArray[np.float32] = clock.steps_s(self.time_s, self.nominal_s).astype(np.float32)
        return steps_s

    def column(self, name: str) -> NDArray[np.floating] | None:
        """Give a column; None where the log lacks it or it has no reading."""
        found = self.values.get(name)
        if found is None:
            return None
        # the first sample has one, mostly, which spares a look at all
        is_silent = np.isnan(found[:1]).all() and np.isnan(found).all()
        return None if is_silent else found

    def columns(self, *names: str) -> list[NDArray[np.floating]]:
        """Give those of some columns that have readings."""
        return [column for name in names if (column := self.column(name)) is not None]

    def highest(self, *names: str) -> NDArray[np.floating] | None:
        """Give the highest reading of some columns, of each sample; None where none has any."""
        columns = self.columns(*names)
        return reduce(np.fmax, columns) if columns else None

    @property
    def activity(self) -> NDArray[np.floating] | None:
        """How busy it was, in %: by the driver's own window, the ring where that saw more.

        A GPU whose utilisation is not reported (MIG) has its SM activity; None if it has neither.
        """
        found = self.highest("sm", "smavg")
        return next(iter(self.columns("smact", "smutil")), None) if found is None else found

    @property
    def is_silent(self) -> NDArray[np.bool_]:
        """Which samples have no reading that every GPU gives; none where the log has none such."""
        signs = [np.isnan(self.values[name]) for name in SIGNS_OF_LIFE if name in self.values]
        none = np.zeros(self.num_samples, np.bool_)
        return np.asarray(np.logical_and.reduce(signs)) if signs else none

    @property
    def place(self) -> Place:
        """Whose it is."""
        return Place(self.job, self.host)

    def fact(self, name: str) -> str | None:
        """Give a fact of this GPU, such as `memory_mib` or `power_limit_w`."""
        return self.facts.get(f"{name} {self.gpu}")

    def number(self, name: str) -> float | None:
        """Give a fact of this GPU that is a number, as one; None if it is none."""
        return gutil.parse_number(self.fact(name))


@dataclass(frozen=True)
class Run:
    """All that was recorded of a run, or of the runs whose logs were named.

    `metrics` and `events` are the lines of a run directory's `metrics.jsonl` and `events.jsonl`
    that can be read, in their order; empty where only logs were named.
    """

    name: str | None
    gpus: tuple[GpuSeries, ...]
    """Sorted by job, host and GPU."""
    log_events: tuple[LogEvent, ...] = ()
    """Sorted by time."""
    metrics: tuple[Mapping[str, Any], ...] = ()
    events: tuple[Mapping[str, Any], ...] = ()
    num_unreadable: int = 0
    """Rows of logs that could not be read."""


def load(paths: Sequence[str], wanted: frozenset[str] | None = None) -> Run:
    """Read a run: run directories, logs, or directories of logs.

    Args:
        paths: of a run directory, the logs of its jobs lie beside it.
        wanted: the columns to keep, if not all.

    Raises:
        UserError: a path cannot be read, a directory holds neither a run nor logs, or no file that
            was named is a log.

    """
    run_dirs = [path for path in paths if is_run(path)]
    events = [line for path in run_dirs for line in lines_of(path, run_files.EVENTS)]
    metrics = [line for path in run_dirs for line in lines_of(path, run_files.METRICS)]
    found = files.find(paths)
    parts = _Parts()
    for log in found:
        parts.add(reader.read_log(log, wanted))
    if found and parts.are_foreign and not run_dirs:
        reader.refuse_foreign(found[0][0])
    gpus = parts.series()
    return Run(
        name=_name(run_dirs, gpus),
        gpus=gpus,
        log_events=tuple(sorted(parts.events, key=lambda event: np.nan_to_num(event.time_s))),
        metrics=tuple(metrics),
        events=tuple(events),
        num_unreadable=parts.num_unreadable,
    )


@dataclass
class _Parts:
    """The readings of each GPU, log by log."""

    of: dict[_Key, list[GpuSeries]] = field(default_factory=dict)
    events: list[LogEvent] = field(default_factory=list)
    num_unreadable: int = 0
    are_foreign: bool = True
    """All that were added are no logs."""

    def add(self, log: Sequence[Log]) -> None:
        """Take up the files of a log."""
        uuids, units = facts.uuids(log)
        _, starts = facts.values(log, "attempt")
        intervals_s = facts.intervals_s(log)
        for file, unit, nominal_s, start in zip(log, units, intervals_s, starts, strict=True):
            self.are_foreign &= file.is_foreign
            self.num_unreadable += file.num_unreadable
            self.events += file.events
            for series in _split(file, unit, uuids, nominal_s, start):
                index = -1 if series.gpu is None else series.gpu
                key = (series.host, series.job, index, series.uuid)
                self.of.setdefault(key, []).append(series)

    def series(self) -> tuple[GpuSeries, ...]:
        order = sorted(self.of, key=lambda key: (key[1] or "", key[0], key[2]))
        return tuple(_joined(self.of[key]) for key in order)


def split(logs: Sequence[Log]) -> tuple[GpuSeries, ...]:
    """Give the series of the GPUs in some logs, sorted by job, host and GPU."""
    parts = _Parts()
    parts.add(logs)
    return parts.series()


def by_unit(gpus: Sequence[GpuSeries]) -> list[GpuSeries]:
    """Join what a GPU was under several indices, as after a requeue: it has the last of them."""
    units: dict[object, list[GpuSeries]] = {}
    for one in sorted(gpus, key=lambda one: one.time_s[-1:].tolist()):
        units.setdefault(one.unit, []).append(one)
    return [replace(_joined(parts), gpu=parts[-1].gpu) for parts in units.values()]


def of_hosts(gpus: Sequence[GpuSeries]) -> list[GpuSeries]:
    """Give each node's samples once, whichever of its GPUs a row is of.

    All have the same readings of their host, but a start of the job may have brought other GPUs.
    Where rows carry no time, the samples are those of the GPU with the most rows.
    """
    nodes: dict[Place, list[GpuSeries]] = {}
    for one in gpus:
        nodes.setdefault(one.place, []).append(one)
    return [_of_host(several) for several in nodes.values()]


def _of_host(gpus: Sequence[GpuSeries]) -> GpuSeries:
    first, *others = sorted(gpus, key=lambda one: -one.num_samples)
    others = [one for one in others if not np.array_equal(one.time_s, first.time_s)]
    if not others or any(np.isnan(one.time_s).any() for one in (first, *others)):
        return first
    whole = _joined([first, *others])
    _, rows = np.unique(whole.time_s, return_index=True)
    return replace(
        whole,
        values={name: column[rows] for name, column in whole.values.items()},
        **{name: column[rows] for name, column in _by_sample(whole).items()},
    )


def _split(
    log: Log,
    unit: NDArray[np.int32],
    uuids: Sequence[str],
    nominal_s: NDArray[np.float64],
    start: NDArray[np.int32],
) -> Iterator[GpuSeries]:
    """Separate the GPUs of a log; `unit` is which of `uuids` a row's is."""
    if not log.num_rows:
        return
    time_s = log.time_s.astype(np.float64)
    time_s[log.time_s == NO_TIME] = np.nan
    order = np.argsort(log.gpu.astype(np.int16), kind="stable")
    if unit.max() > unit.min():
        order = order[np.lexsort((unit[order], log.gpu[order]))]
    if len(log.places) > 1:
        order = order[np.argsort(log.place[order], kind="stable")]
    keys = (log.gpu[order], unit[order], log.place[order])
    first = np.flatnonzero(np.any([np.diff(key, prepend=-2) != 0 for key in keys], axis=0))
    for begin, end in zip(first, [*first[1:], len(order)], strict=True):
        rows = order[begin:end]
        at_first = facts.as_of(log, int(log.num_changes[rows[0]]))
        gpu, code, place = int(log.gpu[rows[0]]), int(unit[rows[0]]), log.places[log.place[rows[0]]]
        yield GpuSeries(
            host=place.host,
            gpu=gpu if gpu >= 0 else None,
            job=place.job,
            time_s=time_s[rows],
            values={name: _compact(column[rows]) for name, column in log.values.items()},
            facts=facts.as_of(log, int(log.num_changes[rows[-1]])),
            shift_s=0 if log.shift_s is None else log.shift_s[rows],
            nominal_s=nominal_s[rows],
            start=start[rows],
            uuid=uuids[code],
            is_dated=log.dated,
            offset=gutil.parse_offset(at_first.get("utc_offset", "")) or timedelta(),
        )


def _compact(column: NDArray[np.floating]) -> NDArray[np.floating]:
    """Keep a column that never changes as one number: most logs have several."""
    first = column[:1]
    is_constant = first.size and (np.isnan(column) if np.isnan(first[0]) else column == first).all()
    return np.broadcast_to(first, column.shape) if is_constant else column


def _joined(parts: Sequence[GpuSeries]) -> GpuSeries:
    """Merge what several logs hold of one GPU; where one lacks a column, it is NaN.

    Rows without a time stay where they are.
    """
    if len(parts) == 1:
        return parts[0]
    columns = [_by_sample(part) for part in parts]
    time_s = np.concatenate([part.time_s for part in parts])
    ahead = not (np.diff(time_s) < 0).any()
    order = slice(None) if ahead else np.argsort(time_s, kind="stable")
    names = dict.fromkeys(name for part in parts for name in part.values)
    first = parts[0]
    return GpuSeries(
        host=first.host,
        gpu=first.gpu,
        job=first.job,
        values={name: _concatenated(parts, name)[order] for name in names},
        facts={key: value for part in parts for key, value in part.facts.items()},
        uuid=first.uuid,
        is_dated=all(part.is_dated for part in parts),
        offset=first.offset,
        **{name: np.concatenate([one[name] for one in columns])[order] for name in columns[0]},
    )


def _by_sample(one: GpuSeries) -> dict[str, Any]:
    """Give the fields that each sample has besides its readings, (samples,) each."""
    names = ("time_s", "shift_s", "nominal_s", "start")
    return {name: np.broadcast_to(getattr(one, name), one.num_samples) for name in names}


def _concatenated(parts: Sequence[GpuSeries], name: str) -> NDArray[np.floating]:
    absent = np.array(np.nan, np.float32)
    return np.concatenate(
        [part.values.get(name, np.broadcast_to(absent, part.num_samples)) for part in parts]
    )


def _name(run_dirs: Sequence[str], gpus: Iterable[GpuSeries]) -> str | None:
    """Name a run by its directory, else by the one job there is."""
    whole = (os.path.abspath(path) for path in run_dirs)
    names = {printable(Path(path).name) for path in whole}
    names = names or {series.job for series in gpus if series.job is not None}
    return names.pop() if len(names) == 1 else None
