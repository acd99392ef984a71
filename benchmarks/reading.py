"""What `python -m monitor report` takes for many logs, for one, and beside pandas."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median
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
_RACES = 11
_READS = 6
"""Of a file in a round; the fastest counts, which other work on the machine disturbs least."""

_WITH_PANDAS = """
import sys, time
import numpy as np, pandas as pd
path, out, names = sys.argv[1], sys.argv[2], sys.argv[3].split(",")
for _ in range(int(sys.argv[4])):
    cpu_s = time.process_time()
    frame = pd.read_csv(path, sep=r"\\s+", comment="#", header=None, names=names, na_values="-",
                        dtype={"Date": str, "Time": str})
    frame["time"] = pd.to_datetime(frame["Date"] + frame["Time"], format="%Y%m%d%H:%M:%S")
    print(time.process_time() - cpu_s, flush=True)
frame["time"] = (frame["time"] - pd.Timestamp(0)) // pd.Timedelta(seconds=1)
np.save(out, frame.drop(columns=["Date", "Time"]).to_numpy(np.float64))
"""


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
    ours_cpu_s: Sequence[float]
    pandas_cpu_s: Sequence[float]
    """The rows of one node's day into memory."""

    @property
    def ratio(self) -> float:
        """How many times as fast as pandas, by CPU time: the median of the rounds' own ratios."""
        pairs = zip(self.pandas_cpu_s, self.ours_cpu_s, strict=True)
        return median(theirs_s / ours_s for theirs_s, ours_s in pairs)


def measure(python: str, *, quick: bool) -> Reading:
    """Write logs, report on them, and read one of them in turns with pandas.

    Args:
        python: an interpreter that has pandas.
        quick: a few rows once, which gives no numbers.

    """
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
        ours_cpu_s, pandas_cpu_s = _race(one, out / "pandas.npy", python, 1 if quick else _RACES)
        return Reading(
            num_rows=num_nodes * NUM_GPUS * num_cycles,
            num_bytes=sum(path.stat().st_size for path in out.glob("*.gutil")),
            report_s=report_s,
            report_cpu_s=report_cpu_s,
            report_mib=report_mib,
            node_s=[wall_s for wall_s, _, _ in alone],
            node_cpu_s=[cpu_s for _, cpu_s, _ in alone],
            ours_cpu_s=ours_cpu_s,
            pandas_cpu_s=pandas_cpu_s,
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


def _race(path: Path, out: Path, python: str, num_rounds: int) -> tuple[list[float], list[float]]:
    """Read a log in turns; both must come to the same numbers."""
    first = path.read_text(encoding="ascii").partition("\n")[0]
    names = first[1:].split()
    ours_s, theirs_s = [], []
    for _ in range(num_rounds):
        taken_s = []
        for _ in range(_READS):
            began_s = time.process_time()
            log = reader.read(str(path))
            taken_s.append(time.process_time() - began_s)
        ours_s.append(min(taken_s))
        command = [python, "-c", _WITH_PANDAS, str(path), str(out), ",".join(names), str(_READS)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        theirs_s.append(min(map(float, done.stdout.split())))
    local_s = log.time_s + 3600  # theirs know of no offset
    ours = np.column_stack([log.gpu, *(log.values[name] for name in names[3:]), local_s])
    np.testing.assert_array_equal(ours.astype(np.float64), np.load(out))
    return ours_s, theirs_s
