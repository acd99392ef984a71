"""Writes logs of ours, and asks the report about them."""

import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from monitor.logs import aggregates, gutil, stats
from monitor.logs.sample import GpuSample, HostSample, Row
from monitor.report import document

NOON = datetime(2026, 11, 21, 12)  # noqa: DTZ001
Written = Callable[..., Path]


def writer(directory: Path) -> Written:
    """Write a log of ours: `gpu(cycle, index)` every `step_s`; no GPUs where `num_gpus` is 0."""

    def write(  # noqa: PLR0913 - each has its default
        num_cycles: int,
        gpu: Callable[[int, int], dict[str, Any]] = lambda _c, _i: {},
        *,
        num_gpus: int = 1,
        step_s: float = 10,
        letters: str = "pumtjh",
        name: str = "slurm-7.n1.gutil",
        head: tuple[tuple[str, str], ...] = (),
    ) -> Path:
        layout = gutil.Layout(letters)
        text = layout.header() + "".join(gutil.comment(*fact) for fact in head)
        for cycle in range(num_cycles):
            time = NOON + timedelta(seconds=cycle * step_s)
            samples = [GpuSample(index=i, **gpu(cycle, i)) for i in range(num_gpus)]
            rows = [Row(time, s, HostSample(40, 2048)) for s in samples or [GpuSample()]]
            text += layout.block(rows, cycle * max(1, num_gpus))
        path = directory / name
        path.write_text(text)
        return path

    return write


def gpus(*paths: Path) -> list[dict[str, Any]]:
    """What the report tells of each GPU, by node and index."""
    nodes, files = aggregates.count([[str(path)] for path in paths])
    reported = document.document(stats.join(nodes), files, None)["gpus"]
    for gpu in reported:
        gpu["span_s"] = gpu["hours"] and gpu["hours"] * 3600
        gpu["energy_j"] = gpu["energy_kwh"] and round(gpu["energy_kwh"] * 3.6e6, 6)
    return sorted(reported, key=lambda gpu: (gpu["host"], gpu["gpu"]))


def run(*options: object) -> "subprocess.CompletedProcess[str]":
    """Run the `report` command."""
    command = [sys.executable, "-m", "monitor", "report", *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
