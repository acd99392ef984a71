"""Readings of many GPUs as a grid: a row a GPU, a node or some nodes, a column a bin of time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from monitor.analysis.axis import binned, together
from monitor.logs.series import of_hosts
from monitor.plot.metrics import reading
from monitor.words import natural
from rundir.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from monitor.analysis.axis import Axis
    from monitor.logs.series import GpuSeries
    from monitor.plot.metrics import Metric

    Key = tuple[str, int]


THROTTLED_SHARE = 0.5
"""A bin counts as throttled from this share of its samples on: one in a hundred says little."""


@dataclass(frozen=True)
class Rows:
    """Whose rows a grid has: GPUs, or what is put together of them."""

    labels: tuple[str, ...]
    first: tuple[int, ...]
    """Where each begins among the GPUs."""
    nodes: tuple[tuple[int, str], ...]
    """Where a node's rows begin, and its name."""
    what: str
    """What a row is, such as `a GPU` or `2 nodes`."""
    are_single: bool


def keys(gpus: Sequence[GpuSeries], *, of_host: bool) -> list[Key]:
    """List the GPUs, or the hosts as (host, -1), in their natural order."""
    found = {
        (series.host, -1 if of_host or series.gpu is None else series.gpu)
        for series in gpus
        if of_host or series.gpu is not None
    }
    return sorted(found, key=lambda key: (natural(key[0]), key[1]))


def values(
    gpus: Sequence[GpuSeries], metric: Metric, axis: Axis, order: Sequence[Key]
) -> NDArray[np.float32]:
    """Give (GPUs, bins) in the metric's unit, in `order`; NaN: no reading."""
    number = {key: index for index, key in enumerate(order)}
    grid = np.full((len(order), axis.num_bins), np.nan, np.float32)
    for series in of_hosts(gpus) if metric.of_host else gpus:
        index = number.get((series.host, -1 if metric.of_host else _index(series)))
        if index is not None:
            found = _binned(series, metric, axis)
            grid[index] = np.where(np.isnan(grid[index]), found, grid[index])
    return grid


def _binned(series: GpuSeries, metric: Metric, axis: Axis) -> NDArray[np.float32]:
    values = reading(series, metric)
    if not metric.is_throttling:
        return binned(axis, series, values, worst=metric.worst)
    absent = np.isnan(values)
    shares = [
        binned(axis, series, np.where(absent, np.nan, values >= least), worst=False)
        for least in (1, 2)
    ]
    throttled = (shares[0] >= THROTTLED_SHARE) * np.where(shares[1] >= THROTTLED_SHARE, 2, 1)
    return np.where(np.isnan(shares[0]), np.nan, throttled).astype(np.float32)


def _index(series: GpuSeries) -> int:
    return -2 if series.gpu is None else series.gpu


def fold(order: Sequence[Key], max_rows: int) -> Rows:
    """Choose rows: a GPU each, if they are not too many; else a node each; else some nodes."""
    place = {host: row for row, (host, _) in reversed(list(enumerate(order)))}
    hosts = list(dict.fromkeys(host for host, _ in order))
    short = shortened(hosts)
    if len(order) <= max_rows:
        labels = tuple(_label(short[host], gpu, len(hosts)) for host, gpu in order)
        what = "a GPU" if any(gpu >= 0 for _, gpu in order) else "a node"
        nodes = tuple((place[host], short[host]) for host in hosts)
        return Rows(labels, tuple(range(len(order))), nodes, what, are_single=True)
    together = -(-len(hosts) // max_rows)
    begins = hosts[::together]
    return Rows(
        labels=tuple(short[host] for host in begins),
        first=tuple(place[host] for host in begins),
        nodes=tuple((row, short[host]) for row, host in enumerate(begins)),
        what=_what(order, together),
        are_single=False,
    )


def _what(order: Sequence[Key], together: int) -> str:
    sizes = set(Counter(host for host, gpu in order if gpu >= 0).values())
    nodes = "a node" if together == 1 else counted(together, "node")
    return f"{nodes} ({counted(together * sizes.pop(), 'GPU')})" if len(sizes) == 1 else nodes


def _label(host: str, gpu: int, num_hosts: int) -> str:
    if gpu < 0:
        return host
    return f"GPU {gpu}" if num_hosts == 1 else f"{host} GPU {gpu}"


_MAX_LABEL = 18


def shortened(hosts: Sequence[str]) -> dict[str, str]:
    """Leave out the domain that all share, what cannot be printed, and the middle of the long."""
    tails = {host.partition(".")[2] for host in hosts}
    short = {}
    for host in hosts:
        text = host.partition(".")[0] if len(tails) == 1 and host.partition(".")[0] else host
        text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
        half = _MAX_LABEL // 2
        short[host] = text if len(text) <= _MAX_LABEL else f"{text[:half]}…{text[-half + 1 :]}"
    return short


def folded(grid: NDArray[np.float32], rows: Rows, *, worst: bool) -> NDArray[np.float32]:
    """Put rows together: (GPUs, bins) to (rows, bins), by their mean or the highest."""
    if rows.are_single:
        return grid
    return together(grid, np.array(rows.first), worst=worst).astype(np.float32)
