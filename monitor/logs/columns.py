"""The registry of columns: all that is known of each, for all that write, read or show it.

A new column is an entry here and its reading: in `monitor/nvml/gpu.py`, or `monitor/recorder/`.
"""

from __future__ import annotations

from typing import NamedTuple

BASE_LETTERS = "pumt"
"""The columns of `dmon -s pumt`, which every log of ours has."""


NO_READING = "-"
"""What stands in a cell without one."""

LAST = 99
"""Where it comes in an order that says nothing of it: behind the others."""


class Panel(NamedTuple):
    """A heat map of pictures and pages."""

    name: str
    """As `--show` knows it."""
    title: str
    columns: tuple[str, ...] = ()
    """Where it is read from, of a sample the first with a reading; empty: its own column."""
    worst: bool = False
    """Several values become their highest, not their mean: a peak must not be smoothed away."""
    top: float | None = None
    """Where its scale ends, if not at the highest value."""
    order: int = LAST


class Live(NamedTuple):
    """A column of the live view."""

    title: str
    width: int
    rank: int
    """Orders what is left out first where the screen is narrow: the highest."""
    order: int = LAST


class Column(NamedTuple):
    """One column of a log."""

    letter: str
    """Of `--columns`."""
    name: str
    """Its head."""
    unit: str
    field: str
    """What it is called in a sample, and in the report's document."""
    width: int = 6
    of: str = "gpu"
    """Which part of a row has it: `gpu`, `host` or `rank`."""
    nvml: str = ""
    """The function of NVML that reads it; empty: NVML does not."""
    is_sign_of_life: bool = False
    """Only a GPU that answers has it; dmon has some others of a lost GPU, too."""
    alias: str = ""
    """A column of dmon's that means the same."""
    dmon_unit: str = ""
    """The unit of dmon's column of this name, where it is another one."""
    table: str = ""
    """What it is called in CSV, Parquet and JSON lines; empty: as its field."""
    metric: str = ""
    """Its metric for Prometheus, after `ddp_gpu_` or `ddp_node_`; empty: none."""
    help: str = ""
    """What the metric is, in a sentence."""
    label: str = ""
    """What the report calls it; empty: it is not reported."""
    order: int = LAST
    """Its place in the report."""
    is_detail: bool = False
    """It is reported only where all is asked for."""
    panel: Panel | None = None
    live: Live | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Under which names it stands in logs: ours, and dmon's for the same."""
        return (self.name, self.alias) if self.alias else (self.name,)

    @property
    def of_host(self) -> bool:
        """Whether it is the same in the rows of all GPUs."""
        return self.of == "host"

    @property
    def table_name(self) -> str:
        """What it is called in tables: who reads them relies on it."""
        return self.table or (f"host_{self.field}" if self.of_host else self.field)

    @property
    def report_name(self) -> str:
        """What it is called in the report's document."""
        return "host_mem_mib" if self.name == "hmem" else self.field

    @property
    def means_in_dmon(self) -> bool:
        """Whether dmon's column of this name, if it has one, means the same in the same unit."""
        return self.dmon_unit in ("", f"GPM:{self.unit}")


_UTIL = Panel("util", "utilisation", ("smavg", "sm"), top=100, order=1)
_THROTTLE = Panel(
    "throttle", "throttled by", ("throt", "pviol", "tviol"), worst=True, top=2, order=5
)

COLUMNS: tuple[Column, ...] = (
    Column(
        letter="p", name="pwr", unit="W", field="power_w", nvml="nvmlDeviceGetPowerUsage",
        is_sign_of_life=True, metric="power_watts", help="Power draw.", label="power W", order=8,
        panel=Panel("power", "power", order=2),
    ),
    Column(
        letter="p", name="gtemp", unit="C", field="temp_c", nvml="nvmlDeviceGetTemperature",
        is_sign_of_life=True, metric="temperature_celsius", help="Temperature of the GPU.",
        label="temperature C", order=9, panel=Panel("temp", "temperature", worst=True, order=4),
    ),
    Column(
        letter="p", name="mtemp", unit="C", field="mem_temp_c", nvml="nvmlDeviceGetFieldValues",
        metric="memory_temperature_celsius", help="Temperature of the GPU's memory.",
        label="memory temperature C", order=10, is_detail=True,
    ),
    Column(
        letter="u", name="sm", unit="%", field="sm_pct", nvml="nvmlDeviceGetUtilizationRates",
        is_sign_of_life=True, metric="utilization_ratio",
        help="Share of time in which a kernel ran.", label="utilisation %", order=1, panel=_UTIL,
    ),
    Column(
        letter="u", name="mem", unit="%", field="mem_pct", nvml="nvmlDeviceGetUtilizationRates",
        metric="memory_utilization_ratio", help="Share of time in which memory was in use.",
    ),
    Column(
        letter="u", name="enc", unit="%", field="enc_pct", nvml="nvmlDeviceGetEncoderUtilization",
        metric="encoder_utilization_ratio", help="Utilization of the video encoder.",
    ),
    Column(
        letter="u", name="dec", unit="%", field="dec_pct", nvml="nvmlDeviceGetDecoderUtilization",
        metric="decoder_utilization_ratio", help="Utilization of the video decoder.",
    ),
    Column(
        letter="u", name="jpg", unit="%", field="jpg_pct", nvml="nvmlDeviceGetJpgUtilization",
        metric="jpeg_utilization_ratio", help="Utilization of the JPEG engine.",
    ),
    Column(
        letter="u", name="ofa", unit="%", field="ofa_pct", nvml="nvmlDeviceGetOfaUtilization",
        metric="optical_flow_utilization_ratio", help="Utilization of the optical flow engine.",
    ),
    Column(
        letter="m", name="fb", unit="MB", field="fb_used_mib", nvml="nvmlDeviceGetMemoryInfo",
        is_sign_of_life=True, metric="memory_used_bytes", help="Memory in use.",
        label="memory GiB", order=7, panel=Panel("memory", "memory in use", worst=True, order=3),
    ),
    Column(
        letter="m", name="bar1", unit="MB", field="bar1_used_mib",
        nvml="nvmlDeviceGetBAR1MemoryInfo", metric="bar1_memory_used_bytes",
        help="BAR1 memory in use.",
    ),
    Column(
        letter="m", name="ccpm", unit="MB", field="protected_used_mib",
        nvml="nvmlDeviceGetConfComputeProtectedMemoryUsage",
        metric="protected_memory_used_bytes", help="Protected memory in use.",
    ),
    Column(
        letter="t", name="rxpci", unit="MB/s", field="pcie_rx_mb_s",
        nvml="nvmlDeviceGetPcieThroughput", metric="pcie_receive_bytes_per_second",
        help="Traffic to the GPU over PCIe.", label="PCIe read MB/s", order=13, is_detail=True,
    ),
    Column(
        letter="t", name="txpci", unit="MB/s", field="pcie_tx_mb_s",
        nvml="nvmlDeviceGetPcieThroughput", metric="pcie_transmit_bytes_per_second",
        help="Traffic from the GPU over PCIe.", label="PCIe write MB/s", order=14, is_detail=True,
    ),
    Column(
        letter="c", name="mclk", unit="MHz", field="mem_clock_mhz", nvml="nvmlDeviceGetClockInfo",
        metric="memory_clock_hertz", help="Clock of the memory.", label="memory clock MHz",
        order=12, live=Live("mclk", 5, 10, order=2),
    ),
    Column(
        letter="c", name="pclk", unit="MHz", field="sm_clock_mhz", nvml="nvmlDeviceGetClockInfo",
        metric="sm_clock_hertz", help="Clock of the multiprocessors.",
        label="SM clock MHz", order=11, live=Live("clock", 5, 8, order=1),
    ),
    Column(
        letter="j", name="energy", unit="J", field="energy_j", width=12,
        nvml="nvmlDeviceGetTotalEnergyConsumption", metric="energy_joules_total",
        help="Energy since the driver was loaded.",
    ),
    Column(
        letter="r", name="throt", unit="bits", field="throttle_bits",
        nvml="nvmlDeviceGetCurrentClocksEventReasons", panel=_THROTTLE,
    ),
    Column(
        letter="g", name="smact", unit="%", field="sm_active_pct", alias="smutil",
        nvml="nvmlGpmMetricsGet", metric="sm_active_ratio",
        help="Share of multiprocessors that were active.", label="SM active %", order=4,
        live=Live("smact", 5, 12, order=3),
    ),
    Column(
        letter="g", name="tensor", unit="%", field="tensor_active_pct", alias="mmaact",
        nvml="nvmlGpmMetricsGet", metric="tensor_active_ratio",
        help="Share of time that tensor cores worked.", label="tensor active %", order=5,
        live=Live("tensor", 6, 11, order=4),
    ),
    Column(
        letter="g", name="dram", unit="%", field="dram_active_pct", nvml="nvmlGpmMetricsGet",
        dmon_unit="GPM:%", metric="dram_active_ratio",
        help="Share of time in which memory moved data.", label="DRAM active %", order=6,
        is_detail=True,
    ),
    Column(
        letter="h", name="cpu", unit="%", field="cpu_pct", of="host",
        metric="cpu_utilization_ratio", help="Share of all cores that worked.",
        label="host CPU %", order=15, panel=Panel("cpu", "CPUs of the host", top=100, order=6),
        live=Live("cpu", 4, 13, order=5),
    ),
    Column(
        letter="h", name="hmem", unit="MB", field="mem_used_mib", width=8, of="host",
        metric="memory_used_bytes", help="Memory of the host in use.",
        label="host memory GiB", order=16,
        panel=Panel("hostmem", "memory of the host", worst=True, order=7),
    ),
    Column(
        letter="e", name="sbecc", unit="errs", field="ecc_corrected", width=8,
        nvml="nvmlDeviceGetTotalEccErrors", table="num_ecc_corrected",
        metric="ecc_corrected_errors_total", help="ECC errors that were corrected.",
    ),
    Column(
        letter="e", name="dbecc", unit="errs", field="ecc_uncorrected",
        nvml="nvmlDeviceGetTotalEccErrors", table="num_ecc_uncorrected",
        metric="ecc_uncorrected_errors_total", help="ECC errors that were not.",
    ),
    Column(
        letter="e", name="remap", unit="rows", field="remapped_rows",
        nvml="nvmlDeviceGetRemappedRows", table="num_remapped_rows", metric="remapped_rows",
        help="Rows of memory that were replaced by spare ones.",
    ),
    Column(
        letter="v", name="pviol", unit="%", field="power_pct",
        nvml="nvmlDeviceGetViolationStatus", table="power_throttled_pct",
        metric="power_throttled_ratio", help="Share of time throttled for power.",
    ),
    Column(
        letter="v", name="tviol", unit="%", field="heat_pct", dmon_unit="bool",
        nvml="nvmlDeviceGetViolationStatus", table="heat_throttled_pct",
        metric="thermal_throttled_ratio", help="Share of time throttled for heat.",
    ),
    Column(
        letter="x", name="smavg", unit="%", field="sm_avg_pct", nvml="nvmlDeviceGetSamples",
        metric="utilization_average_ratio", help="Mean utilization since the last sample.",
        label="utilisation between samples, mean %", order=2, is_detail=True,
    ),
    Column(
        letter="x", name="smmax", unit="%", field="sm_max_pct", nvml="nvmlDeviceGetSamples",
        metric="utilization_peak_ratio", help="Highest utilization since the last sample.",
        label="utilisation between samples, peak %", order=3, is_detail=True,
    ),
    Column(
        letter="n", name="nvrx", unit="MB/s", field="nvlink_rx_mb_s", width=8,
        nvml="nvmlDeviceGetFieldValues", metric="nvlink_receive_bytes_per_second",
        help="Traffic to the GPU over NVLink.",
    ),
    Column(
        letter="n", name="nvtx", unit="MB/s", field="nvlink_tx_mb_s", width=8,
        nvml="nvmlDeviceGetFieldValues", metric="nvlink_transmit_bytes_per_second",
        help="Traffic from the GPU over NVLink.",
    ),
    Column(
        letter="i", name="ibrx", unit="MB/s", field="ib_rx_mb_s", width=8, of="host",
        metric="infiniband_receive_bytes_per_second", help="Traffic in over InfiniBand.",
    ),
    Column(
        letter="i", name="ibtx", unit="MB/s", field="ib_tx_mb_s", width=8, of="host",
        metric="infiniband_transmit_bytes_per_second", help="Traffic out over InfiniBand.",
    ),
    Column(
        letter="s", name="step", unit="count", field="step", width=10, of="rank",
        metric="rank_step", help="Step of the rank that trains on this GPU.",
    ),
    Column(letter="q", name="rank", unit="id", field="rank", of="rank"),
    Column(
        letter="q", name="rfb", unit="MB", field="held_mib", width=8, of="rank",
        nvml="nvmlDeviceGetComputeRunningProcesses", table="rank_used_mib",
        metric="rank_memory_used_bytes", help="Memory that the rank's process holds.",
    ),
    Column(
        letter="q", name="ofb", unit="MB", field="other_mib", width=8, of="rank",
        nvml="nvmlDeviceGetComputeRunningProcesses", table="other_used_mib",
        metric="other_memory_used_bytes", help="Memory held by processes of no rank.",
    ),
    Column(
        letter="d", name="shm", unit="%", field="shm_pct", of="host", metric="shm_used_ratio",
        help="Share of /dev/shm in use.",
    ),
    Column(
        letter="d", name="disk", unit="%", field="disk_pct", of="host", metric="disk_used_ratio",
        help="Share of the disk in use that the log lies on.",
    ),
    Column(
        letter="d", name="dfree", unit="MB", field="disk_free_mib", width=10, of="host",
        metric="disk_free_bytes", help="Room left on that disk.",
    ),
    Column(
        letter="k", name="mono", unit="s", field="mono_s", width=10, of="host",
        table="host_monotonic_s",
    ),
)  # fmt: skip
"""In the order in which a log has them."""
SIGNS_OF_LIFE = tuple(column.name for column in COLUMNS if column.is_sign_of_life)
"""What every GPU reports that is there, where its log has the column."""


def letters() -> str:
    """List the letters of all columns, those of every log first."""
    further = dict.fromkeys(c.letter for c in COLUMNS if c.letter not in BASE_LETTERS)
    return BASE_LETTERS + "".join(further)


def fields_of(part: str) -> tuple[str, ...]:
    """List the fields of `gpu`, `host` or `rank`."""
    return tuple(column.field for column in COLUMNS if column.of == part)


def reported() -> tuple[Column, ...]:
    """Choose what a report shows, in its order."""
    labelled = [column for column in COLUMNS if column.label]
    return tuple(sorted(labelled, key=lambda column: column.order))
