"""What the monitor's recorder costs at an interval of 1 s, with all columns and events."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ROOT = Path(__file__).parent.parent
_STANDIN = _ROOT / "tests" / "monitor" / "nvml_standin.c"
_NUM_GPUS = 8
_DEADLINE_S = 30.0
_NUM_STARTS = 5
_WINDOW_S = 5.0
"""As often the recorder asks for what changes seldom: every window has one such poll."""
_SOME_PID = 4_000_000  # near the kernel's limit: no process's here
_WORLD = (
    f"gpus {_NUM_GPUS}",
    *("set gpm * 1", "set gpm2 * 50", "set gpm5 * 40", "set gpm10 * 30"),
    *("grow nvrx_kib * 1000000", "grow nvtx_kib * 500000", "set mtemp * 70"),
    *("grow samples * 6", "grow pviol_ns * 100000000", "set tviol_ns * 0", "set ccpm * 0"),
    *(f"process {_SOME_PID + i} {i} 70000" for i in range(_NUM_GPUS)),
    "event 8 3 13",
)
"""A stub with all readings."""


@dataclass(frozen=True, kw_only=True)
class Recorder:
    """One recorder over `duration_s`, and several starts."""

    duration_s: float
    cpu_pct: Sequence[float]
    """Of one core, in each window of 5 s; time that other machines took from this one is in it."""
    memory_mb: float
    """The largest resident set seen, in 10^6 bytes."""
    first_line_s: Sequence[float]
    """From starting the process to its first line."""
    first_row_s: Sequence[float]
    """To its first row of readings."""
    gpus: str
    """Where the readings came from."""
    num_columns: int
    """That held a reading in the last row."""


def measure(duration_s: float) -> Recorder:
    """Record for `duration_s`, then start some more."""
    with tempfile.TemporaryDirectory() as folder:
        env, gpus = _driver(Path(folder))
        env["DDP_BEAT_DIR"] = _ranks(Path(folder))
        log = Path(folder) / "job.gutil"
        cpu_pct, memory_mb = _watch(log, env, duration_s)
        last_row = log.read_text(encoding="utf-8").splitlines()[-1]
        starts = [_time_start(Path(folder) / f"{i}.gutil", env) for i in range(_NUM_STARTS)]
    return Recorder(
        duration_s=duration_s,
        cpu_pct=cpu_pct,
        memory_mb=memory_mb,
        first_line_s=[line_s for line_s, _ in starts],
        first_row_s=[row_s for _, row_s in starts],
        gpus=gpus,
        num_columns=sum(cell != "-" for cell in last_row.split()[3:]),
    )


def _ranks(folder: Path) -> str:
    """Write the heartbeat of a rank for each GPU."""
    heartbeats = folder / "beats"
    heartbeats.mkdir()
    for rank in range(_NUM_GPUS):
        pid = _SOME_PID + rank
        heartbeat = struct.pack("<8s7q16x", b"DDPBEAT1", pid, 100, 0, 2, 500, 300, 1)
        (heartbeats / f"rank-{rank}").write_bytes(heartbeat)
        (heartbeats / f"child-{rank}").write_text(f"{pid} {rank} trainer\n", encoding="ascii")
    return str(heartbeats)


def _driver(folder: Path) -> tuple[dict[str, str], str]:
    if shutil.which("gcc") is None:
        return {}, "none: the host's readings alone (no gcc to build the stand-in for NVML)"
    env = build_driver(folder, "".join(f"{line}\n" for line in _WORLD))
    return env, f"{_NUM_GPUS}, of a stand-in for NVML under the real nvidia-ml-py"


def build_driver(folder: Path, world: str) -> dict[str, str]:
    """Compile the tests' stand-in for the driver's library; return what makes it be taken."""
    library = folder / "libnvidia-ml.so.1"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-pthread", "-o", str(library), str(_STANDIN)]
    subprocess.run(command, check=True)
    script = folder / "driver.txt"
    script.write_text(world, encoding="ascii")
    return {"LD_LIBRARY_PATH": str(folder), "NVML_STANDIN": str(script)}


def _watch(log: Path, env: dict[str, str], duration_s: float) -> tuple[list[float], float]:
    with _recording(log, env) as process:
        _wait_for_row(log)
        seen = psutil.Process(process.pid)
        memory_bytes = 0
        windows = []
        window_s = min(_WINDOW_S, duration_s)
        for _ in range(round(duration_s / window_s)):
            began_s, began_cpu_s = time.monotonic(), _cpu_s(seen)
            while (passed_s := time.monotonic() - began_s) < window_s:
                memory_bytes = max(memory_bytes, seen.memory_info().rss)
                time.sleep(min(0.5, window_s - passed_s))
            windows.append(100 * (_cpu_s(seen) - began_cpu_s) / passed_s)
        return windows, memory_bytes / 1e6


def _time_start(log: Path, env: dict[str, str]) -> tuple[float, float]:
    began_s = time.monotonic()
    with _recording(log, env):
        _wait_for(log, "#")
        line_s = time.monotonic() - began_s
        _wait_for_row(log)
        return line_s, time.monotonic() - began_s


@contextmanager
def _recording(log: Path, env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-P", "-m", "monitor", "record", "--interval", "1"]
    process = subprocess.Popen(
        [*command, "--out", str(log)], env=os.environ | {"PYTHONPATH": str(_ROOT)} | env
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=_DEADLINE_S)


def _wait_for_row(log: Path) -> None:
    _wait_for(log, "\n ")


def _wait_for(log: Path, text: str) -> None:
    deadline_s = time.monotonic() + _DEADLINE_S
    while not (log.exists() and text in log.read_text(encoding="utf-8")):
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"the recorder wrote nothing within {_DEADLINE_S:g} s")
        time.sleep(0.002)


def _cpu_s(process: psutil.Process) -> float:
    """By the scheduler's own count: a tick of 10 ms is what five polls take."""
    threads = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text(encoding="ascii").split()[0]) for thread in threads) / 1e9
