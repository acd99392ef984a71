"""Rules on what a GPU does with its time: idle, hung, starved of data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from monitor.analysis import readings
from monitor.analysis.findings import Finding
from monitor.analysis.rules import ACTIVITY, METRICS, TIMES, Window, rule
from monitor.runs.history import number, seconds
from monitor.words import MIB_PER_GIB, and_more, minutes
from rundir.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from monitor.analysis.findings import Severity
    from monitor.analysis.readings import Stretch
    from monitor.analysis.thresholds import Thresholds
    from monitor.logs.series import GpuSeries, Run

_BLIP = 4  # a lone sample up to so many times `busy_sm_pct` does not end an idle time
_MIN_METRICS = 5  # lines of metrics, before a share of them means anything


@rule(
    "idle",
    "a GPU does nothing for minutes, after the start-up",
    needs=(ACTIVITY, TIMES),
    reads=("fb", "step"),
    thresholds=("busy_sm_pct", *readings.SETTLED, "idle_minutes", "idle_now_minutes", "idle_pct"),
)
def _idle(run: Run, at: Thresholds) -> Iterator[Finding]:
    for series in readings.gpus(run):
        active = series.activity
        if active is None:
            continue
        mask = _without_blips(active, at.busy_sm_pct)
        if isinstance(run, Window):
            counts = np.ones(len(mask), np.bool_)
            mask &= readings.up_to_the_end(mask)
            least_minutes, since = at.idle_now_minutes, ""
        else:
            counts = readings.settled(series, at)
            mask &= counts
            least_minutes, since = at.idle_minutes, " after the start-up"
        found = readings.stretches(mask, series.steps_s)
        worst = found.longest
        if worst is None or not worst.duration_s or worst.duration_s < 60 * least_minutes:
            continue
        whole_s = float(np.nansum(series.steps_s[counts]))
        share_pct = 100 * found.total_s / whole_s
        is_much = share_pct >= at.idle_pct or isinstance(run, Window)
        severity: Severity = "warning" if is_much else "hint"
        yield readings.finding(
            severity,
            series,
            worst,
            f"idle for {minutes(worst.duration_s)} at a stretch,"
            f" {share_pct:.0f} % of {minutes(whole_s)}{since}{_held(series, worst)}",
            "ask for fewer GPUs, or see in the rank's log what it waited for",
            weight=found.total_s,
        )


def _without_blips(active: NDArray[np.floating], busy_pct: float) -> NDArray[np.bool_]:
    """Return which samples are idle; a lone one that is hardly busy between idle ones is, too."""
    idle = active <= busy_pct
    lone = np.zeros(len(idle), np.bool_)
    lone[1:-1] = idle[:-2] & idle[2:] & (active[1:-1] <= _BLIP * busy_pct)
    return idle | lone


def _held(series: GpuSeries, stretch: Stretch) -> str:
    memory_mib = series.column("fb")
    if memory_mib is None:
        return ""
    held_mib = np.nan_to_num(memory_mib[stretch.begin : stretch.end]).max()
    return f"; up to {held_mib / MIB_PER_GIB:.0f} GiB of its memory in use meanwhile"


@rule(
    "hung",
    "a GPU is busy at low power and without memory traffic: it waits for others",
    needs=(ACTIVITY, "mem|dram", "pwr", TIMES),
    reads=("step",),
    thresholds=("hung_sm_pct", "hung_mem_pct", "hung_power_pct", "hung_minutes"),
)
def _hung(run: Run, at: Thresholds) -> Iterator[Finding]:
    for series in readings.gpus(run):
        waits = _waits(series, at)
        if waits is None:
            continue
        found = readings.stretches(waits, series.steps_s)
        worst, num_others = found.worst(60 * at.hung_minutes, series.num_samples)
        if worst is None:
            continue
        to_the_end = worst.end == series.num_samples
        power_w = float(np.nanmean(series.values["pwr"][worst.begin : worst.end]))
        yield readings.finding(
            "error" if to_the_end else "warning",
            series,
            worst,
            f"busy without work for {minutes(worst.duration_s)}"
            f"{', up to the end of the log' if to_the_end else ', then it went on'}"
            f"{and_more(num_others, 'time')}:"
            f" at least {at.hung_sm_pct:g} % busy, no memory traffic, {power_w:.0f} W"
            f" of {_full_power_w(series):.0f} W",
            "it waits in a collective for a rank that does not come: `python -m monitor why`"
            " names it; set DDP_HANG_TIMEOUT to have it ended sooner",
            weight=worst.duration_s,
        )


def _waits(series: GpuSeries, at: Thresholds) -> NDArray[np.bool_] | None:
    """Return in which samples a GPU seems to wait in a collective; None: not recorded."""
    active = series.activity
    traffic = series.highest("mem", "dram")
    power_w = series.column("pwr")
    if active is None or power_w is None or traffic is None:
        return None
    is_still = traffic <= at.hung_mem_pct
    is_cool = power_w <= at.hung_power_pct / 100 * _full_power_w(series)
    waits: NDArray[np.bool_] = (active >= at.hung_sm_pct) & is_still & is_cool
    step = series.column("step")
    if step is not None:  # a small model computes without memory traffic, too
        waits[1:] &= ~(step[1:] > step[:-1])
    return waits


def _full_power_w(series: GpuSeries) -> float:
    """Give what it may draw, else the most it was seen to draw."""
    return series.number("power_limit_w") or float(np.nanmax(series.values["pwr"]))


@rule(
    "data",
    "GPUs wait for data: busy dips while CPUs are full, or the trainer's own numbers",
    needs=(f"{ACTIVITY}|{METRICS}", f"cpu|{METRICS}"),
    reads=("step",),
    thresholds=(
        "working_sm_pct",
        *readings.SETTLED,
        "starved_dip_pct",
        "starved_cpu_pct",
        "starved_wait_pct",
    ),
)
def _starved(run: Run, at: Thresholds) -> Iterator[Finding]:
    yield from _by_trainer(run, at)
    for series in readings.gpus(run):
        active, cpu_pct = series.activity, series.column("cpu")
        if active is None or cpu_pct is None:
            continue
        in_work = _between_work(active, readings.settled(series, at), at.working_sm_pct)
        dips = in_work & (active < at.working_sm_pct)
        dip_pct = readings.share_pct(dips, in_work)
        full_pct = readings.share_pct(cpu_pct >= at.starved_cpu_pct, dips)
        if not readings.reaches(dip_pct, at.starved_dip_pct) or full_pct < 50:  # noqa: PLR2004 - half
            continue
        yield readings.finding(
            "warning",
            series,
            in_work,
            f"less than {at.working_sm_pct:g} % busy in {dip_pct:.0f} % of its samples, and in"
            f" {full_pct:.0f} % of these the machine's CPUs were {at.starved_cpu_pct:g} % full",
            "the CPUs cannot feed it: ask for more CPUs (--cpus-per-task), decode and resize the"
            " data beforehand, or do that on the GPU",
            weight=dip_pct,
        )


def _between_work(
    active: NDArray[np.floating], settled: NDArray[np.bool_], working_pct: float
) -> NDArray[np.bool_]:
    """Return which samples lie between the first and the last in which it was at work."""
    at_work = np.flatnonzero(settled & (active >= working_pct))
    found: NDArray[np.bool_] = settled & ~np.isnan(active)
    first, last = (at_work[0], at_work[-1]) if at_work.size else (0, -1)
    found[:first] = found[last + 1 :] = False
    return found


def _by_trainer(run: Run, at: Thresholds) -> Iterator[Finding]:
    """Evaluate what the trainer measured: how long its slowest rank waited for data."""
    lines = [line for line in run.metrics if number(line.get("data_wait_pct")) is not None]
    waits = [number(line.get("data_wait_pct")) or 0.0 for line in lines]
    mean_pct = float(np.mean(waits)) if waits else 0.0
    if len(waits) < _MIN_METRICS or not readings.reaches(mean_pct, at.starved_wait_pct):
        return
    yield Finding(
        severity="warning",
        begin_s=seconds(lines[0].get("time")),
        end_s=seconds(lines[-1].get("time")),
        evidence=f"the trainer waited for data for {mean_pct:.0f} % of its time, by"
        f" {counted(len(waits), 'line')} of metrics.jsonl",
        suggestion="give the loader more workers (--num-workers) if CPUs are free; else decode and"
        " resize the data beforehand, or put it on faster storage",
        weight=mean_pct,
    )


RULES = (_hung, _idle, _starved)
