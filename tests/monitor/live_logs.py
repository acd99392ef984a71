"""Logs that grow, as a recorder writes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from monitor.logs import gutil
from monitor.logs.sample import GpuSample, HostSample, Row

if TYPE_CHECKING:
    from pathlib import Path

START = datetime(2026, 11, 21, 12, 0, 0)  # noqa: DTZ001 - the log's own local time


def gpu(index: int | None = 0, **readings: Any) -> GpuSample:
    """Give a busy GPU's readings, less what is given."""
    usual = {
        "power_w": 412,
        "temp_c": 61,
        "mem_temp_c": 66,
        "sm_pct": 98,
        "mem_pct": 40,
        "enc_pct": 0,
        "dec_pct": 0,
        "jpg_pct": 0,
        "ofa_pct": 0,
        "fb_used_mib": 39_117,
        "bar1_used_mib": 4,
        "pcie_rx_mb_s": 300,
        "pcie_tx_mb_s": 200,
        "mem_clock_mhz": 2619,
        "sm_clock_mhz": 1980,
        "energy_j": 10**7,
        "throttle_bits": 0,
        "sm_active_pct": 90,
        "tensor_active_pct": 45,
        "dram_active_pct": 30,
    }
    return GpuSample(index=index, **(usual | readings))


NONE = GpuSample()
"""The row of a node without a GPU."""


@dataclass
class LogWriter:
    """One node's log; each `write` is a cycle of the recorder."""

    path: Path
    host: str
    job: str = "7"
    letters: str = "pumtcjrgh"
    interval_s: float = 15
    memory_mib: int = 81_559
    num_rows: int = 0
    num_cycles: int = 0
    _begun: bool = field(default=False, repr=False)

    def text(self, *gpus: GpuSample, cpu: int = 12) -> str:
        """Give the text of one cycle, the head of the log before the first."""
        layout = gutil.Layout(self.letters)
        now = START + timedelta(seconds=self.interval_s * self.num_cycles)
        rows = [Row(now, one, HostSample(cpu, 120_000)) for one in gpus]
        text = "" if self._begun else layout.header() + self._facts(gpus)
        text += layout.block(rows, self.num_rows)
        self._begun = True
        self.num_rows += len(rows)
        self.num_cycles += 1
        return text

    def write(self, *gpus: GpuSample, cpu: int = 12) -> None:
        """Append one cycle."""
        with self.path.open("a", encoding="ascii") as file:
            file.write(self.text(*gpus, cpu=cpu))

    def begin_anew(self) -> None:
        """Write the head again with the next cycle, as into a rotated log."""
        self._begun, self.num_rows = False, 0

    def _facts(self, gpus: tuple[GpuSample, ...]) -> str:
        facts = [
            ("host", self.host),
            ("interval_s", f"{self.interval_s:g}"),
            ("job", self.job),
            ("utc_offset", "+01:00"),
            ("host_memory_mib", "515000"),
        ]
        for one in gpus:
            if one.index is not None:
                facts.append((f"gpu {one.index}", f"GPU-{one.index} NVIDIA H100"))
                facts.append((f"power_limit_w {one.index}", "700"))
                facts.append((f"memory_mib {one.index}", str(self.memory_mib)))
        return "".join(gutil.comment(key, value) for key, value in facts)


def log_of(folder: Path, host: str, **options: Any) -> LogWriter:
    """Give the writer of a node's log, where the recorder puts it."""
    job = options.get("job", "7")
    return LogWriter(folder / f"slurm-{job}.{host}.gutil", host, **options)
