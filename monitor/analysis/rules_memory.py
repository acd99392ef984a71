"""Rules on room: the GPU's memory, the machine's, /dev/shm and the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from monitor.analysis import readings
from monitor.analysis.rules import FACT, TIMES, rule
from monitor.logs import gutil
from monitor.runs.history import number
from monitor.words import MIB_PER_GIB, minutes
from rundir.paths import MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from monitor.analysis.findings import Finding
    from monitor.analysis.thresholds import Thresholds
    from monitor.logs.series import GpuSeries, Run

_MIN_SAMPLES = 2  # that must be so full: one alone may be a reading's mistake


@rule(
    "memory",
    "a GPU's memory is nearly full, or mostly empty while it works",
    needs=("fb", f"{FACT}memory_mib"),
    reads=("sm", "smavg", "smact", "step"),
    thresholds=("memory_full_pct", "memory_empty_pct", "working_sm_pct", *readings.SETTLED),
)
def _memory(run: Run, at: Thresholds) -> Iterator[Finding]:
    for series in readings.gpus(run):
        used_mib, whole_mib = series.column("fb"), series.number("memory_mib")
        if used_mib is None or not whole_mib:
            continue
        used_pct = 100 / whole_mib * used_mib
        peak_pct = float(np.nanmax(used_pct))
        text = (
            f"at most {np.nanmax(used_mib) / MIB_PER_GIB:.0f} of"
            f" {whole_mib / MIB_PER_GIB:.0f} GiB in use ({peak_pct:.0f} %)"
        )
        full = used_pct >= at.memory_full_pct
        if full.sum() >= _MIN_SAMPLES:
            fix = "a longer sequence or a fragment more ends in out of memory: a smaller batch,"
            fix += " activation checkpointing, or, for a command of your own,"
            fix += " PYTORCH_ALLOC_CONF=expandable_segments:True"
            yield readings.finding("hint", series, full, text, fix, weight=100 + peak_pct)
        elif peak_pct <= at.memory_empty_pct and _works(series, at):
            fix = "the batch could be larger, or the job could do with fewer or smaller GPUs"
            yield readings.finding("hint", series, None, text, fix, weight=100 - peak_pct)


def _works(series: GpuSeries, at: Thresholds) -> bool:
    """Whether it ever works after the start-up: an idle GPU's memory is empty by nature."""
    active = series.activity
    if active is None:
        return False
    return bool((readings.settled(series, at) & (active >= at.working_sm_pct)).any())


@rule(
    "unattributed",
    "processes of no rank hold a GPU's memory",
    needs=("ofb", TIMES),
    thresholds=("unattributed_mib", "unattributed_minutes"),
)
def _unattributed(run: Run, at: Thresholds) -> Iterator[Finding]:
    for series in readings.gpus(run):
        others_mib = series.column("ofb")
        if others_mib is None:
            continue
        worst = readings.stretches(others_mib >= at.unattributed_mib, series.steps_s).longest
        if worst is None or worst.duration_s < 60 * at.unattributed_minutes:
            continue
        most_mib = float(np.nanmax(others_mib[worst.begin : worst.end]))
        who = series.fact("processes")
        fix = "what a job before has left behind, or a user who was not given this GPU: ps on the"
        fix += " node shows it; until it is gone, exclude the node (sbatch --exclude)"
        yield readings.finding(
            "warning",
            series,
            worst,
            f"processes of no rank held up to {most_mib / MIB_PER_GIB:.1f} GiB of its memory"
            f" for {minutes(worst.duration_s)}{f'; on it at last: {who}' if who else ''}",
            fix,
            weight=most_mib,
        )


@rule(
    "host_memory",
    "the machine's memory is nearly full",
    needs=("hmem", f"{FACT}host_memory_mib"),
    thresholds=("host_memory_pct",),
)
def _host_memory(run: Run, at: Thresholds) -> Iterator[Finding]:
    for series in readings.hosts(run, "hmem"):
        whole_mib = gutil.parse_number(series.facts.get("host_memory_mib"))
        if not whole_mib:
            continue
        used_pct = 100 / whole_mib * series.values["hmem"]
        fix = "before the kernel kills a rank: fewer loader workers, less cached or pinned"
        fix += " memory, or ask for more (--mem)"
        yield from _full(series, used_pct, at.host_memory_pct, "memory", fix)


@rule("shm", f"{MEMORY} is nearly full", needs=("shm",), thresholds=("shm_pct",))
def _shm(run: Run, at: Thresholds) -> Iterator[Finding]:
    for series in readings.hosts(run, "shm"):
        fix = "a full one ends loaders with a bus error: fewer workers or prefetched batches, or a"
        fix += " larger /dev/shm"
        yield from _full(series, series.values["shm"], at.shm_pct, MEMORY, fix)


@rule(
    "disk",
    "the disk that the log lies on is nearly full, and has little room for checkpoints",
    needs=("disk", "dfree"),
    thresholds=("disk_pct", "disk_free_gib"),
)
def _disk(run: Run, at: Thresholds) -> Iterator[Finding]:
    written = [number(e.get("bytes")) or 0 for e in run.events if e.get("event") == "checkpoint"]
    enough_mib = max(at.disk_free_gib * MIB_PER_GIB, 2 * max(written, default=0) / 2**20)
    for series in readings.hosts(run, "disk"):
        free_mib = series.column("dfree")
        if free_mib is None:
            continue
        is_low = free_mib < enough_mib  # a large disk that is as full may have room for years
        fix = "before checkpoints fail: remove old ones, or write elsewhere (DDP_OUT)"
        left = f", with {np.nanmin(free_mib) / MIB_PER_GIB:.0f} GiB left"
        used_pct = np.where(is_low, series.values["disk"], np.nan)
        yield from _full(series, used_pct, at.disk_pct, "disk", fix, left)


def _full(  # noqa: PLR0913, PLR0917 - what a finding of these has
    series: GpuSeries,
    used_pct: NDArray[np.floating],
    limit_pct: float,
    what: str,
    fix: str,
    more: str = "",
) -> Iterator[Finding]:
    full = used_pct >= limit_pct
    if full.sum() >= _MIN_SAMPLES:
        peak_pct = float(np.nanmax(used_pct))
        text = f"the machine's {what} was up to {peak_pct:.0f} % full{more}"
        yield readings.finding("warning", series, full, text, fix, weight=peak_pct, of_host=True)


RULES = (_host_memory, _shm, _disk, _unattributed, _memory)
