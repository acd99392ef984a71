"""What `python -m monitor watch` takes while 128 logs grow, each between any two pictures."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from monitor.logs import gutil
from monitor.logs.sample import GpuSample, HostSample, Row

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROOT = Path(__file__).parent.parent
NUM_FILES, NUM_GPUS = 128, 8
_NUM_CYCLES = 240  # there when it begins: an hour at 15 s
_SETTLE_S = 10.0
_WIDTH, _HEIGHT = 160, 50
_PAUSE_S = 0.15  # what comes after such a silence is another picture


@dataclass(frozen=True, kw_only=True)
class Watching:
    """One live view over `duration_s`."""

    num_files: int
    num_gpus: int
    """Of a file."""
    growth_s: float
    """Between two rows of a GPU."""
    duration_s: float
    cpu_pct: float
    """Of one core."""
    pictures_per_s: float
    memory_mb: float
    """Resident, in 10^6 bytes."""
    start_cpu_s: float
    """Until it shows all GPUs: the interpreter, and the last part of every log."""


def measure(*, quick: bool, growth_s: float = 0.5) -> Watching:
    """Let logs of 8 GPUs grow and watch them, in a terminal of 160 columns and 50 lines.

    Args:
        quick: few logs for a short time, which gives no numbers.
        growth_s: how often each log grows by a cycle of all its GPUs.

    """
    num_files, duration_s = (4, 3.0) if quick else (NUM_FILES, 30.0)
    with tempfile.TemporaryDirectory() as folder:
        logs = [_Log(Path(folder), number) for number in range(num_files)]
        for log in logs:
            log.write(_NUM_CYCLES)
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", _HEIGHT, _WIDTH, 0, 0))
        command = [sys.executable, "-P", "-m", "monitor", "watch", folder]
        env = os.environ | {"PYTHONPATH": str(_ROOT), "TERM": "xterm-256color"}
        process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True
        )
        try:
            return _watch(process, master, logs, duration_s, growth_s)
        finally:
            process.kill()
            process.wait()
            os.close(master)
            os.close(slave)


def _watch(
    process: subprocess.Popen[bytes],
    master: int,
    logs: Sequence[_Log],
    duration_s: float,
    growth_s: float,
) -> Watching:
    shown = _Shown(master)
    num_rows = len(logs) * NUM_GPUS
    deadline_s = time.monotonic() + 60
    while f"of {num_rows}".encode() not in shown.text:
        assert time.monotonic() < deadline_s, shown.text[-2000:]
        shown.take(0.1)
    seen = psutil.Process(process.pid)
    start_cpu_s = _cpu_s(seen)
    _grow(logs, shown, min(_SETTLE_S, duration_s), growth_s)
    began_s, began_cpu_s, began_pictures = time.monotonic(), _cpu_s(seen), shown.num_pictures
    _grow(logs, shown, duration_s, growth_s)
    wall_s = time.monotonic() - began_s
    return Watching(
        num_files=len(logs),
        num_gpus=NUM_GPUS,
        growth_s=growth_s,
        duration_s=wall_s,
        cpu_pct=100 * (_cpu_s(seen) - began_cpu_s) / wall_s,
        pictures_per_s=(shown.num_pictures - began_pictures) / wall_s,
        memory_mb=seen.memory_info().rss / 1e6,
        start_cpu_s=start_cpu_s,
    )


def _grow(logs: Sequence[_Log], shown: _Shown, duration_s: float, growth_s: float) -> None:
    """Let each log grow every `growth_s`, one after the other and not all at once."""
    end_s = time.monotonic() + duration_s
    pause_s = growth_s / len(logs)
    due_s, number = time.monotonic(), 0
    while time.monotonic() < end_s:
        while due_s <= time.monotonic():
            logs[number % len(logs)].write(1)
            number, due_s = number + 1, due_s + pause_s
        shown.take(max(0.0, due_s - time.monotonic()))


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


class _Shown:
    """What the program writes to the terminal; it is not drawn."""

    def __init__(self, master: int) -> None:
        self._master = master
        self.text = b""
        self.num_pictures = 0
        self._seen_s = 0.0

    def take(self, wait_s: float) -> None:
        if select.select([self._master], [], [], wait_s)[0]:
            data = os.read(self._master, 65_536)
            self.text = (self.text + data)[-20_000:]
            now_s = time.monotonic()
            self.num_pictures += now_s - self._seen_s > _PAUSE_S
            self._seen_s = now_s


class _Log:
    """A log that grows; what differs from row to row is the utilisation alone."""

    def __init__(self, folder: Path, number: int) -> None:
        self._path = folder / f"slurm-7.gpu{number:03}.gutil"
        self._number = number
        self._layout = gutil.Layout("pumtcjrgh")
        self._num_rows = 0
        self._now = datetime(2026, 11, 21)  # noqa: DTZ001 - the log's own local time
        facts = [("host", f"gpu{number:03}"), ("utc_offset", "+00:00"), ("interval_s", "15")]
        facts += [(f"memory_mib {gpu}", "81559") for gpu in range(NUM_GPUS)]
        text = self._layout.header() + "".join(gutil.comment(*fact) for fact in facts)
        self._path.write_text(text, encoding="ascii")

    def write(self, num_cycles: int) -> None:
        """Append cycles, with one write."""
        parts = []
        for _ in range(num_cycles):
            self._now += timedelta(seconds=15)
            rows = [self._row(gpu) for gpu in range(NUM_GPUS)]
            parts.append(self._layout.block(rows, self._num_rows))
            self._num_rows += NUM_GPUS
        with self._path.open("ab", buffering=0) as file:
            file.write("".join(parts).encode())

    def _row(self, gpu: int) -> Row:
        level = (self._num_rows * 7 + self._number * 13 + gpu * 29) % 100
        return Row(
            self._now,
            GpuSample(
                index=gpu,
                power_w=300 + 3 * level,
                temp_c=40 + level // 4,
                mem_temp_c=45,
                sm_pct=level,
                mem_pct=40,
                fb_used_mib=39_000 + level,
                bar1_used_mib=4,
                pcie_rx_mb_s=level,
                pcie_tx_mb_s=level,
                mem_clock_mhz=2619,
                sm_clock_mhz=1980 - level,
                energy_j=10**7 + self._num_rows,
                throttle_bits=4,
                sm_active_pct=level,
                tensor_active_pct=level // 2,
                dram_active_pct=30,
            ),
            HostSample(12, 120_000),
        )
