"""What one look at a node gives: frozen values with units, None where no reading exists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One look at one GPU, in the units of the log: whole numbers, cut as the driver cuts them.

    `index` is None in the row of a node that has no GPU.
    """

    index: int | None = None
    power_w: int | None = None
    temp_c: int | None = None
    mem_temp_c: int | None = None
    sm_pct: int | None = None
    mem_pct: int | None = None
    enc_pct: int | None = None
    dec_pct: int | None = None
    jpg_pct: int | None = None
    ofa_pct: int | None = None
    fb_used_mib: int | None = None
    bar1_used_mib: int | None = None
    protected_used_mib: int | None = None
    pcie_rx_mb_s: int | None = None
    pcie_tx_mb_s: int | None = None
    mem_clock_mhz: int | None = None
    sm_clock_mhz: int | None = None
    energy_j: int | None = None
    throttle_bits: int | None = None
    sm_active_pct: int | None = None
    tensor_active_pct: int | None = None
    dram_active_pct: int | None = None


@dataclass(frozen=True, slots=True)
class HostSample:
    """One look at the machine: share of all its cores that worked since the last look, memory."""

    cpu_pct: int | None = None
    mem_used_mib: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a log: a GPU (or none) and its host at one moment of local time."""

    time: datetime
    gpu: GpuSample
    host: HostSample


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at all GPUs of a node.

    `facts` are what changes rarely (driver, names, UUIDs), as (key, value) pairs for `##` lines.
    """

    gpus: tuple[GpuSample, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()


class GpuSource(Protocol):
    """Whatever can look at the GPUs of this node."""

    def read(self) -> Reading:
        """Look once."""
        ...


class HostSource(Protocol):
    """Whatever can look at this machine."""

    def read(self) -> HostSample:
        """Look once."""
        ...
