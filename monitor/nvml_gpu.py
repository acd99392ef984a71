"""One GPU: what is asked of it at each look, by column letter, and what is told of it once."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import pynvml

from monitor import nvml_calls as calls
from monitor.crew import Job
from monitor.nvml_calls import MIB, Number
from monitor.nvml_mig import Mig
from monitor.nvml_processes import Processes
from monitor.nvml_rates import Gpm, NvLink, Samples, Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monitor.crew import Ask, Values
    from monitor.nvml_calls import Handle

T = TypeVar("T")

_NUMBERS: dict[str, tuple[Number, ...]] = {
    "p": (
        Number("nvmlDeviceGetPowerUsage", "power_w", divisor=1000),
        Number("nvmlDeviceGetTemperature", "temp_c", (pynvml.NVML_TEMPERATURE_GPU,)),
    ),
    "u": (
        Number("nvmlDeviceGetEncoderUtilization", "enc_pct", has_period=True),
        Number("nvmlDeviceGetDecoderUtilization", "dec_pct", has_period=True),
        Number("nvmlDeviceGetJpgUtilization", "jpg_pct", has_period=True),
        Number("nvmlDeviceGetOfaUtilization", "ofa_pct", has_period=True),
    ),
    "t": (
        Number("nvmlDeviceGetPcieThroughput", "pcie_rx_mb_s", (1,), divisor=1000),
        Number("nvmlDeviceGetPcieThroughput", "pcie_tx_mb_s", (0,), divisor=1000),
    ),
    "c": (
        Number("nvmlDeviceGetClockInfo", "mem_clock_mhz", (pynvml.NVML_CLOCK_MEM,)),
        Number("nvmlDeviceGetClockInfo", "sm_clock_mhz", (pynvml.NVML_CLOCK_SM,)),
    ),
    "j": (Number("nvmlDeviceGetTotalEnergyConsumption", "energy_j", divisor=1000, is_wide=True),),
    "r": (
        Number(
            "nvmlDeviceGetCurrentClocksEventReasons",
            "throttle_bits",
            is_wide=True,
            older="nvmlDeviceGetCurrentClocksThrottleReasons",  # its name before driver 535
        ),
    ),
}
_ECC = (
    Number(
        "nvmlDeviceGetTotalEccErrors",
        "ecc_corrected",
        (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_VOLATILE_ECC),
        is_wide=True,
    ),
    Number(
        "nvmlDeviceGetTotalEccErrors",
        "ecc_uncorrected",
        (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC),
        is_wide=True,
    ),
)
_SELDOM_S = 5.0  # errors of memory are counted for good; that one happens, an event tells at once


class _Seldom:
    """Calls whose values hold for a while: between two of them the last values are told."""

    def __init__(self, asks: tuple[Ask, ...], monotonic: Callable[[], float]) -> None:
        self._asks = asks
        self._monotonic = monotonic
        self._next_s = monotonic()
        self._known: Values = {}

    def read(self, values: Values) -> bool | None:
        """Look once."""
        now_s = self._monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + _SELDOM_S
            known: Values = {}
            for ask in self._asks:
                if ask(known):
                    return calls.refused(values, pynvml.NVML_ERROR_GPU_IS_LOST)
            self._known = known
        values |= self._known
        return None


def _memory_temp(handle: Handle) -> Ask | None:
    fields = calls.Fields(handle, ((pynvml.NVML_FI_DEV_MEMORY_TEMP, 0),))

    def ask(values: Values) -> bool | None:
        found = fields.read(values)
        if found is not None and found[0] is not None:
            values["mem_temp_c"] = found[0]
        return calls.LOST in values

    return ask if fields.is_there else None


def _violation(policy: int, name: str) -> Callable[[Handle], Ask | None]:
    return lambda handle: Violation(handle, policy, name).read


def _gpm(handle: Handle) -> Ask | None:
    gpm = Gpm.open(handle)
    return gpm.read if gpm else None


_OTHERS: dict[str, tuple[tuple[str, Callable[[Handle], Ask | None]], ...]] = {
    "p": (("nvmlDeviceGetFieldValues", _memory_temp),),
    "u": (("nvmlDeviceGetUtilizationRates", calls.bind_utilization),),
    "m": (
        ("nvmlDeviceGetMemoryInfo", calls.bind_memory),
        ("nvmlDeviceGetBAR1MemoryInfo", calls.bind_bar1),
        ("nvmlDeviceGetConfComputeProtectedMemoryUsage", calls.bind_protected),
    ),
    "g": (("nvmlGpmSampleGet", _gpm),),
    "v": (
        ("nvmlDeviceGetViolationStatus", _violation(pynvml.NVML_PERF_POLICY_POWER, "power_pct")),
        ("nvmlDeviceGetViolationStatus", _violation(pynvml.NVML_PERF_POLICY_THERMAL, "heat_pct")),
    ),
    "x": (("nvmlDeviceGetSamples", lambda handle: Samples(handle).read),),
    "n": (("nvmlDeviceGetFieldValues", lambda handle: NvLink(handle).read),),
    "q": (("nvmlDeviceGetComputeRunningProcesses", lambda handle: Processes(handle).read),),
}


@dataclass
class Gpu:
    """One GPU: its index, and, once NVML has given a handle, the calls of a look."""

    index: int
    letters: str
    monotonic: Callable[[], float] = time.monotonic
    handle: Handle | None = None
    jobs: list[Job] = field(default_factory=list)
    mig: Mig | None = None

    def __post_init__(self) -> None:
        self._open_job = Job(self.index, "nvmlDeviceGetHandleByIndex", self.open)

    @property
    def asked(self) -> list[Job]:
        """The calls of a look; without a handle, the one that may give it."""
        return self.jobs or [self._open_job]

    def close(self) -> None:
        """Forget the handle: NVML is gone."""
        self.handle, self.jobs = None, []

    def open(self, _values: Values) -> None:
        """Get the handle, and prepare the calls; without one there are none. May hang."""
        try:
            self.handle = pynvml.nvmlDeviceGetHandleByIndex(self.index)
        except pynvml.NVMLError:
            return
        self.mig = Mig.open(self.index, self.handle) if "m" in self.letters else None
        self.jobs = [Job(self.index, kind, ask) for kind, ask in self._asks()]

    def _asks(self) -> Iterator[tuple[str, Ask]]:
        for letter in self.letters:
            binds = [(number.name, number.bind) for number in _NUMBERS.get(letter, ())]
            for kind, bind in (*binds, *_OTHERS.get(letter, ())):
                ask = self._bound(bind)
                if ask is not None:
                    yield kind, ask
        if "e" in self.letters:
            errors = (*(number.bind for number in _ECC), calls.bind_remap)
            asks = tuple(ask for bind in errors if (ask := self._bound(bind)) is not None)
            yield "nvmlDeviceGetTotalEccErrors", _Seldom(asks, self.monotonic).read
        if self.mig is not None:
            yield "nvmlDeviceGetMigDeviceHandleByIndex", self.mig.read

    def _bound(self, bind: Callable[[Handle], Ask | None]) -> Ask | None:
        """Prepare a call; None: this driver lacks it, or this nvidia-ml-py does."""
        with suppress(Exception):
            return bind(self.handle)
        return None

    def facts(self) -> Iterator[tuple[str, str]]:
        """Tell what does not change: UUID and name, power limit, memory, MIG devices."""
        if self.handle is None:
            yield f"gpu {self.index}", "-"
            return
        told = _quietly(lambda: f"{pynvml.nvmlDeviceGetUUID(self.handle)}")
        name = _quietly(lambda: f"{pynvml.nvmlDeviceGetName(self.handle)}")
        yield f"gpu {self.index}", f"{told} {name}" if told and name else "-"
        limit_mw = _quietly(lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(self.handle))
        if limit_mw is not None:
            yield f"power_limit_w {self.index}", str(int(limit_mw) // 1000)
        memory_mib = _quietly(self._memory_mib)
        if memory_mib is not None:
            yield f"memory_mib {self.index}", str(memory_mib)
        if self.mig is not None:
            yield from self.mig.facts()

    def _memory_mib(self) -> int:
        """All the memory it has."""
        with suppress(pynvml.NVMLError_FunctionNotFound):
            memory = pynvml.nvmlDeviceGetMemoryInfo(self.handle, version=pynvml.nvmlMemory_v2)
            return int(memory.total) // MIB
        return int(pynvml.nvmlDeviceGetMemoryInfo(self.handle).total) // MIB


def _quietly(ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except (pynvml.NVMLError, UnicodeDecodeError):
        return None
