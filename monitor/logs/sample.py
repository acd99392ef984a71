"""What one look at a node gives: frozen values with units, None where no reading exists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime


class GpuSample(NamedTuple):
    """One look at one GPU, in the units of the log: whole numbers, cut as the driver cuts them.

    `index` is None in the row of a node that has no GPU. A tuple, for a frozen dataclass of so many
    fields costs three times as much to make, at each look and GPU.
    """

    index: int | None = None  # type: ignore[assignment] # nobody searches it by tuple.index
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
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    remapped_rows: int | None = None
    power_pct: int | None = None
    """Share of the time since the last look in which the power limit held the clocks down."""
    heat_pct: int | None = None
    """The same for temperature."""
    sm_avg_pct: int | None = None
    """Utilisation by the driver's own samples since the last look."""
    sm_max_pct: int | None = None
    nvlink_rx_mb_s: int | None = None
    nvlink_tx_mb_s: int | None = None
    processes: tuple[tuple[int, int | None], ...] = ()
    """Process id (the host's) and MiB held on this GPU, of each process that computes on it."""


@dataclass(frozen=True, slots=True)
class HostSample:
    """One look at the machine; shares and rates are over the time since the last look."""

    cpu_pct: int | None = None
    """Of all its cores."""
    mem_used_mib: int | None = None
    ib_rx_mb_s: int | None = None
    """InfiniBand, all ports."""
    ib_tx_mb_s: int | None = None
    shm_pct: int | None = None
    """Used of /dev/shm."""
    disk_pct: int | None = None
    """Used of the disk that the log lies on."""
    mono_s: int | None = None
    """CLOCK_MONOTONIC."""


@dataclass(frozen=True, slots=True)
class RankSample:
    """What the trainer tells beside a sample of its GPU."""

    step: int | None = None
    """Steps done by the rank on this GPU."""
    rank: int | None = None
    held_mib: int | None = None
    """What the rank's processes hold on this GPU."""
    other_mib: int | None = None
    """What processes hold on it that are of no rank."""
    processes: str | None = None
    """Each process on it with its rank and its MiB, as they last changed, for a `##` line."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a log: a GPU (or none), its host and its rank at one moment of local time."""

    time: datetime
    gpu: GpuSample
    host: HostSample
    rank: RankSample = RankSample()


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at all GPUs of a node.

    `facts` are what changes rarely (driver, names, UUIDs), as (key, value) pairs for `##` lines.
    """

    gpus: tuple[GpuSample, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    is_renumbered: bool = False
    """Whether a device cgroup hides GPUs: CUDA counts only those that are here."""


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


class RankSource(Protocol):
    """Whatever knows which rank computes on which GPU, and how far it is."""

    def read(self, reading: Reading) -> Sequence[RankSample]:
        """Look once: a sample for each GPU of a reading."""
        ...
