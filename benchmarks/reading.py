"""What `python -m monitor report` takes for many logs, and for one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from monitor.logs import gutil, reader
from monitor.logs.sample import GpuSample, HostSample, Row

if TYPE_CHECKING:
    from collections.abc import Sequence

NUM_NODES, NUM_GPUS, NUM_CYCLES, INTERVAL_S = 512, 8, 5760, 15
_LETTERS = "pumtcjrgh"
_NUM_KINDS = 4
_ROUNDS = 5
_READS = 6
"""Of a file in a round; the fastest counts, which other work on the machine disturbs least."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Seconds; of several rounds each."""

    num_rows: int
    """Of all logs."""
    num_bytes: int
    report_s: float
    report_cpu_s: float
    """Of all its processes."""
    report_mib: float
    """The peak of its largest process, times their number."""
    node_s: Sequence[float]
    node_cpu_s: Sequence[float]
    """One node's day, from the start of the interpreter to its end."""
    rows_cpu_s: Sequence[float]
    """The rows of one node's day into memory."""


def measure(*, quick: bool) -> Reading:
    """Write logs, report on them, and read one; `quick`: few rows once, which gives no numbers."""
    num_nodes, num_cycles, num_rounds = (2, 60, 1) if quick else (NUM_NODES, NUM_CYCLES, _ROUNDS)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        kinds = [_day(seed, num_cycles) for seed in range(min(_NUM_KINDS, num_nodes))]
        for node in range(num_nodes):
            name = f"slurm-7.gpu{node + 1:03}.gutil"
            (out / name).write_text(kinds[node % len(kinds)], encoding="ascii")
        one = out / "slurm-7.gpu001.gutil"
        report_s, report_cpu_s, report_mib = _report(str(out))
        alone = [_report(str(one)) for _ in range(num_rounds)]
        return Reading(
            num_rows=num_nodes * NUM_GPUS * num_cycles,
            num_bytes=sum(path.stat().st_size for path in out.glob("*.gutil")),
            report_s=report_s,
            report_cpu_s=report_cpu_s,
            report_mib=report_mib,
            node_s=[wall_s for wall_s, _, _ in alone],
            node_cpu_s=[cpu_s for _, cpu_s, _ in alone],
            rows_cpu_s=[_read(one) for _ in range(num_rounds)],
        )


def _day(seed: int, num_cycles: int) -> str:
    """Write a day of a node: busy GPUs that rest now and then."""
    rng = np.random.default_rng(seed)
    layout = gutil.Layout(_LETTERS)
    start = datetime(2026, 11, 21)  # noqa: DTZ001 - the log's own local time
    parts = [layout.header(), gutil.comment("utc_offset", "+01:00")]
    shape = (num_cycles, NUM_GPUS)
    busy = rng.random(shape) < 0.9
    sm = np.where(busy, rng.integers(90, 101, shape), 0).tolist()
    power = np.where(busy, rng.integers(400, 690, shape), 90)
    energy = (10**7 + np.cumsum(power * INTERVAL_S, axis=0)).tolist()
    power, small = power.tolist(), rng.integers(0, 64, (*shape, 4)).tolist()
    memory = rng.integers(60_000, 61_000, shape).tolist()
    for cycle in range(num_cycles):
        host = HostSample(small[cycle][0][0], 300_000 + small[cycle][0][1])
        rows = [
            Row(
                start + timedelta(seconds=INTERVAL_S * cycle),
                GpuSample(
                    index=gpu,
                    power_w=power[cycle][gpu],
                    temp_c=30 + small[cycle][gpu][0],
                    mem_temp_c=35 + small[cycle][gpu][0],
                    sm_pct=sm[cycle][gpu],
                    mem_pct=small[cycle][gpu][1],
                    enc_pct=0,
                    dec_pct=0,
                    jpg_pct=0,
                    ofa_pct=0,
                    fb_used_mib=memory[cycle][gpu],
                    bar1_used_mib=4,
                    pcie_rx_mb_s=20 * small[cycle][gpu][2],
                    pcie_tx_mb_s=30 * small[cycle][gpu][3],
                    mem_clock_mhz=2619,
                    sm_clock_mhz=1900 + small[cycle][gpu][3],
                    energy_j=energy[cycle][gpu],
                    throttle_bits=4,
                    sm_active_pct=small[cycle][gpu][1],
                    tensor_active_pct=small[cycle][gpu][2],
                    dram_active_pct=small[cycle][gpu][3],
                ),
                host,
            )
            for gpu in range(NUM_GPUS)
        ]
        parts.append(layout.block(rows, cycle * NUM_GPUS))
    return "".join(parts)


def _report(path: str) -> tuple[float, float, float]:
    """Run the command; its seconds, CPU seconds and MiB, with those of its processes."""
    command = [sys.executable, "-P", "-m", "monitor", "report", path]
    script = (
        "import resource, subprocess, sys;"
        "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL);"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN);"
        "print(used.ru_utime + used.ru_stime, used.ru_maxrss)"
    )
    root = str(Path(__file__).parent.parent)
    began_s = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-S", "-c", script, *command],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": root},
    )
    wall_s = time.perf_counter() - began_s
    cpu_s, peak_kib = map(float, done.stdout.split())
    num_processes = 1 + len(os.sched_getaffinity(0))
    return wall_s, cpu_s, peak_kib / 1024 * num_processes


def _read(path: Path) -> float:
    """Read a log some times; the CPU seconds of the fastest."""
    taken_s = []
    for _ in range(_READS):
        began_s = time.process_time()
        reader.read(str(path))
        taken_s.append(time.process_time() - began_s)
    return min(taken_s)
