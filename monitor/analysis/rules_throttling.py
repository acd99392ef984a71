"""Rules on what keeps a GPU's clocks down: heat, the power limit, the power brake."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from monitor.analysis import readings, throttled
from monitor.analysis.rules import Window, rule
from monitor.logs import throttling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from monitor.analysis.findings import Finding
    from monitor.analysis.thresholds import Thresholds
    from monitor.logs.series import GpuSeries, Run


@rule(
    "thermal",
    "heat keeps a GPU's clocks down",
    needs=("tviol|throt",),
    reads=("gtemp", "pclk", "sm", "smavg"),
    thresholds=("thermal_pct", "busy_sm_pct"),
)
def _thermal(run: Run, at: Thresholds) -> Iterator[Finding]:
    for series in readings.gpus(run):
        pct, where = throttled.hot(series, at)
        if where is None:
            continue
        heat = series.column("gtemp")
        hottest = "" if heat is None else f", at up to {np.nanmax(heat):.0f} C"
        yield readings.finding(
            "warning",
            series,
            where,
            f"heat kept the clocks down for {pct:.1f} % of its busy time{hottest}"
            f"{_clock_fell(series, where, at)}",
            "report it to the administrators (cooling, dust, fans, air inlet); steps are as slow as"
            " the hottest GPU",
            weight=pct,
        )


@rule(
    "power",
    "power keeps a GPU's clocks down: the brake, or (a hint) its limit",
    needs=("pviol|throt",),
    reads=("throt", "pclk", "sm", "smavg"),
    thresholds=("brake_pct", "power_cap_pct", "busy_sm_pct"),
)
def _power(run: Run, at: Thresholds) -> Iterator[Finding]:
    for series in readings.gpus(run):
        braked_pct, braked = throttled.braked(series, at)
        if braked is not None:
            yield readings.finding(
                "warning",
                series,
                braked,
                f"the power brake or another slowdown by hardware for {braked_pct:.1f} % of its"
                f" busy time{_clock_fell(series, braked, at)}",
                "report it to the administrators: its power supply or its rack is at the limit",
                weight=100 + braked_pct,
            )
            continue
        if isinstance(run, Window):
            continue  # only the whole run shows whether the limit is what holds it back
        pct, where = throttled.share(series, throttling.POWER_CAP, "pviol", at)
        if where is not None and readings.reaches(pct, at.power_cap_pct):
            limit_w = series.number("power_limit_w")
            limit = "its limit" if limit_w is None else f"its limit of {limit_w:.0f} W"
            yield readings.finding(
                "hint",
                series,
                where,
                f"clocks held by {limit} for {pct:.0f} % of its busy time"
                f"{_clock_fell(series, where, at)}",
                "normal under full load; faster only with a higher power limit, if the"
                " administrators have lowered it",
                weight=pct,
            )


def _clock_fell(series: GpuSeries, where: NDArray[np.bool_], at: Thresholds) -> str:
    clock_mhz = series.column("pclk")
    if clock_mhz is None:
        return ""
    free = clock_mhz[readings.busy(series, at) & ~where]
    held = clock_mhz[where]
    if np.isnan(free).all() or np.isnan(held).all():
        return ""
    return f"; SM clock {np.nanmedian(held):.0f} instead of {np.nanmedian(free):.0f} MHz"


RULES = (_thermal, _power)
