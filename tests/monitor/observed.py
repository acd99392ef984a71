"""Logs made from a list of true moments: what passed is the test's own."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from monitor.logs import gutil
from monitor.logs.sample import GpuSample, HostSample, Row
from tests.monitor.reported import gpus

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


NOON = datetime(2026, 10, 25, 2, 30)  # noqa: DTZ001 - the hour that autumn has twice


LETTERS = "pumtjhk"


WATTS = 400


@dataclass(frozen=True)
class Observation:
    """One sample: when it truly is, what the wall clock says then, and what was read."""

    true_s: float
    off_s: float = 0
    busy: int | None = 90
    power_w: int | None = WATTS
    counted: bool = True
    index: int = 0
    boot_s: float = 0


def text(observations: Sequence[Observation], *, stamped: bool, letters: str = LETTERS) -> str:
    """The rows of a log of ours; the counter grows by WATTS, as power says."""
    layout = gutil.Layout(letters)
    rows = []
    for observation in observations:
        energy_j = 10_000_000 + WATTS * int(observation.true_s) if observation.counted else None
        gpu = GpuSample(
            index=observation.index,
            sm_pct=observation.busy,
            power_w=observation.power_w,
            energy_j=energy_j,
        )
        mono_s = 1000 + int(observation.true_s - observation.boot_s) if stamped else None
        wall = NOON + timedelta(seconds=observation.true_s + observation.off_s)
        rows.append(Row(wall, gpu, HostSample(40, 2048, mono_s=mono_s)))
    return layout.header() + layout.block(rows, 0)


def head(interval_s: float, **facts: str) -> str:
    """The lines by which a monitor begins."""
    reported = {"monitor": "0.1.0", "host": "n1", "job": "7", "interval_s": f"{interval_s:g}"}
    return "".join(gutil.comment(*fact) for fact in (reported | facts).items())


def observations(num: int, step_s: float = 1, begin_s: float = 0, **what: Any) -> list[Observation]:
    """Samples at an even pace."""
    return [Observation(begin_s + step_s * i, **what) for i in range(num)]


def reported_of(path: Path) -> dict[str, Any]:
    """What the report says of the one GPU."""
    (one,) = gpus(path)
    return one
