"""Rules on a GPU beside the others of its job: slower, busier with memory, worse linked."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from monitor.analysis import peers, readings, throttled
from monitor.analysis.findings import Finding
from monitor.analysis.rules import ACTIVITY, FACT, METRICS, rule
from monitor.runs.history import integer, mappings, number, seconds
from monitor.words import MIB_PER_GIB
from rundir.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from monitor.analysis.findings import Severity
    from monitor.analysis.peers import Measure, Odd, Peers
    from monitor.analysis.thresholds import Thresholds
    from monitor.logs.series import GpuSeries, Run


_NUM_SUSTAINED = 2
"""Lines of metrics: a single one may be anything's doing."""
_MIN_CAPPED = 20  # samples at work
_MORE_POWER = 1.1  # times that of the middle one

_WAITED_FOR = (
    "the others wait for it: look for what else uses its CPUs, its share of the data, and faults"
    " of the node; exclude the node if it stays"
)


_SEE_LINK = (
    "see `nvidia-smi -q -d PCIE` on the node for the link's width and generation; report it to the"
    " administrators if it is less than its peers'"
)
_BALANCE = (
    "it decides how large the batch can be: load checkpoints with map_location, set each rank's"
    " device before the first CUDA call, split evenly"
)
_HELD_DOWN = (
    "see `nvidia-smi -q -d CLOCK,PERFORMANCE` on the node for locked clocks, a lower power limit"
    " or heat; report it to the administrators"
)


def _finding(odd: Odd, evidence: str, suggestion: str, severity: Severity = "warning") -> Finding:
    return Finding(
        severity=severity,
        host=odd.series.host,
        gpu=None if odd.is_node else odd.series.gpu,
        begin_s=odd.begin_s,
        end_s=odd.end_s,
        evidence=evidence,
        suggestion=suggestion,
        job=odd.series.job,
        weight=abs(odd.own - odd.others),
    )


@rule(
    "straggler",
    "a GPU is less busy than its peers, or the trainer names its rank slow",
    needs=(f"{ACTIVITY}|{METRICS}",),
    thresholds=(
        "straggler_points",
        "straggler_pct",
        "working_sm_pct",
        "busy_sm_pct",
        *readings.SETTLED,
        *peers.THRESHOLDS,
    ),
    reads=("rank", "step"),
)
def _straggler(run: Run, at: Thresholds) -> Iterator[Finding]:
    yield from _named_by_trainer(run, at)

    def settled(series: GpuSeries) -> NDArray[np.floating] | None:
        active = series.activity
        return None if active is None else np.where(readings.settled(series, at), active, np.nan)

    def differs(group: Peers) -> NDArray[np.bool_]:
        lower: NDArray[np.bool_] = group.others - group.values >= at.straggler_points
        return lower & (group.others >= at.working_sm_pct) & (group.values > at.busy_sm_pct)

    for odd in peers.outliers(run, at, settled, differs, by_node=True):
        text = f"{odd.own:.0f} % busy where {_peers(odd)} is {odd.others:.0f} %"
        if odd.is_node:
            text = f"its GPUs are at most {odd.own:.0f} % busy where those of the job's other node"
            text += f" are at least {odd.others:.0f} %"
        yield _finding(odd, text, _WAITED_FOR)


def _peers(odd: Odd) -> str:
    return f"the middle one of its {counted(odd.num_peers, 'peer')}"


def _named_by_trainer(run: Run, at: Thresholds) -> Iterator[Finding]:
    """Find the ranks that the trainer measured to be slow, and their GPUs."""
    lines = [line for line in run.metrics if integer(line.get("step")) is not None]
    lines = [line for line in lines if "samples_per_s" in line]
    named: dict[tuple[int, str], list[float]] = {}
    for line in lines:
        for slow in mappings(line.get("slow_ranks")):
            rank, node = integer(slow.get("rank")), slow.get("node")
            ratio = number(slow.get("ratio"))
            if rank is not None and isinstance(node, str) and ratio is not None:
                named.setdefault((rank, node), []).append(ratio)
    with_rank = [event for event in run.events if "local_rank" in event]
    places = {integer(event.get("rank")): integer(event["local_rank"]) for event in with_rank}
    num_ranks = 1 + max((rank for rank in places if rank is not None), default=0)
    if 2 * len(named) > num_ranks > 1:
        return  # both of two, or three of four: each was slow at times, as ranks are
    for (rank, node), ratios in named.items():
        share_pct = 100 * len(ratios) / len(lines)
        if len(ratios) < _NUM_SUSTAINED or not readings.reaches(share_pct, at.straggler_pct):
            continue
        yield Finding(
            severity="warning",
            host=node,
            gpu=_gpu_of(run, node, rank, places.get(rank)),
            begin_s=seconds(lines[0].get("time")),
            end_s=seconds(lines[-1].get("time")),
            evidence=f"rank {rank} took {np.mean(ratios):.1f} times as long as the middle one in"
            f" {len(ratios)} of {counted(len(lines), 'line')} of metrics.jsonl",
            suggestion=_WAITED_FOR,
            weight=100 * float(np.mean(ratios)),
        )


def _gpu_of(run: Run, host: str, rank: int, local_rank: int | None) -> int | None:
    """Return the GPU that a rank was on, by the log's own column; else its local rank."""
    num_samples: Counter[int | None] = Counter()
    indices = []
    for series in run.gpus:
        if series.host == host:
            indices.append(series.gpu)
            ranks = series.column("rank")
            num_samples[series.gpu] += 0 if ranks is None else int((ranks == rank).sum())
    if indices and all(index is None for index in indices):
        return None
    index, num = max(num_samples.items(), key=lambda item: item[1], default=(None, 0))
    return index if num else local_rank


@rule(
    "clock",
    "a GPU at work has a lower SM clock than its peers, or (a hint) than it could have",
    needs=(ACTIVITY, "pclk"),
    reads=("pwr", "throt", "tviol"),
    thresholds=("clock_lower_pct", "clock_capped_pct", "working_sm_pct", *peers.THRESHOLDS),
)
def _clock(run: Run, at: Thresholds) -> Iterator[Finding]:
    def at_work_mhz(series: GpuSeries) -> NDArray[np.floating] | None:
        active, clock_mhz = series.activity, series.column("pclk")
        if active is None or clock_mhz is None:
            return None
        compared = (active >= at.working_sm_pct) & ~throttled.by_fault(series, at)
        return np.where(compared, clock_mhz, np.nan)

    def differs(group: Peers) -> NDArray[np.bool_]:
        lower: NDArray[np.bool_] = group.values <= (1 - at.clock_lower_pct / 100) * group.others
        return lower & ~_draws_more(group)[:, None]

    found = list(peers.outliers(run, at, at_work_mhz, differs, by_node=True))
    for odd in found:
        text = (
            f"SM clock of {odd.own:.0f} MHz at work, where {_peers(odd)} has {odd.others:.0f} MHz"
        )
        if odd.is_node:
            text = f"its GPUs are at {odd.own:.0f} MHz or less at work, those of the job's other"
            text += f" node at {odd.others:.0f} MHz or more"
        yield _finding(odd, text, _HELD_DOWN)
    for series in readings.gpus(run) if not found else ():
        yield from _capped(series, at_work_mhz(series), at)


def _capped(
    series: GpuSeries, at_work_mhz: NDArray[np.floating] | None, at: Thresholds
) -> Iterator[Finding]:
    """Find clocks that nothing seems to hold down: the driver shows no reason for a locked one."""
    top_mhz, free = series.number("top_sm_mhz"), throttled.is_free(series)
    if at_work_mhz is None or top_mhz is None or free is None:
        return
    known = ~np.isnan(at_work_mhz)
    low = known & free & (at_work_mhz <= (1 - at.clock_capped_pct / 100) * top_mhz)
    if low.sum() >= _MIN_CAPPED and 2 * low.sum() > known.sum():
        own_mhz = float(np.median(at_work_mhz[low]))
        text = f"SM clock of {own_mhz:.0f} MHz at work, where it could have {top_mhz:.0f} MHz,"
        text += " and neither heat nor power held it down"
        yield readings.finding("hint", series, low, text, _HELD_DOWN, weight=top_mhz - own_mhz)


def _draws_more(group: Peers) -> NDArray[np.bool_]:
    """Return which GPUs draw far more power than most: they do more, and pay with their clocks."""
    columns = (series.column("pwr") for series in group.series)
    power_w = np.array([0.0 if one is None else np.nan_to_num(one).mean() for one in columns])
    more: NDArray[np.bool_] = power_w > _MORE_POWER * np.median(power_w)
    return more


@rule(
    "pcie",
    "a GPU moves less over PCIe than its peers at their peak",
    needs=("rxpci|txpci",),
    reads=("sm", "smavg", "smact"),
    thresholds=("pcie_lower_pct", "pcie_min_mb_s", "busy_sm_pct", *peers.THRESHOLDS),
)
def _pcie(run: Run, at: Thresholds) -> Iterator[Finding]:
    def moved(name: str) -> Measure:
        return lambda series: _while_busy(series, name, at)

    def differs(group: Peers) -> NDArray[np.bool_]:
        lower: NDArray[np.bool_] = group.values < (1 - at.pcie_lower_pct / 100) * group.others
        return lower & (group.others >= at.pcie_min_mb_s)

    for column, way in (("rxpci", "to"), ("txpci", "from")):
        for odd in peers.outliers(run, at, moved(column), differs, peak=True):
            text = f"at most {odd.own:.0f} MB/s {way} the GPU over PCIe, where {_peers(odd)}"
            text += f" reaches {odd.others:.0f} MB/s"
            yield _finding(odd, text, _SEE_LINK)


def _while_busy(series: GpuSeries, name: str, at: Thresholds) -> NDArray[np.floating] | None:
    """Leave out samples of a GPU that does nothing: it moves nothing either."""
    column = series.column(name)
    return None if column is None else np.where(readings.busy(series, at), column, np.nan)


@rule(
    "unbalanced",
    "a GPU holds far more memory than its peers",
    needs=("rfb|fb", f"{FACT}memory_mib"),
    thresholds=("unbalanced_pct", *peers.THRESHOLDS),
)
def _unbalanced(run: Run, at: Thresholds) -> Iterator[Finding]:
    def used_pct(series: GpuSeries) -> NDArray[np.floating] | None:
        used_mib = series.column("rfb")
        used_mib = series.column("fb") if used_mib is None else used_mib
        whole_mib = series.number("memory_mib")
        return None if used_mib is None or not whole_mib else 100 / whole_mib * used_mib

    def differs(group: Peers) -> NDArray[np.bool_]:
        more: NDArray[np.bool_] = group.values - group.others >= at.unbalanced_pct
        return more

    for odd in peers.outliers(run, at, used_pct, differs, peak=True):
        gib = (odd.series.number("memory_mib") or 0.0) / 100 / MIB_PER_GIB
        text = f"{odd.own * gib:.0f} GiB in use where {_peers(odd)} has {odd.others * gib:.0f} GiB"
        yield _finding(odd, text, _BALANCE, "hint")


RULES = (_straggler, _clock, _pcie, _unbalanced)
