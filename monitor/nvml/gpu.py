"""One GPU: what is asked of it at each poll, by column letter, and what is reported of it once."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pynvml

from monitor.nvml import calls
from monitor.nvml.calls import MIB, Number, quietly
from monitor.nvml.mig import Mig
from monitor.nvml.processes import bind_processes
from monitor.nvml.rates import Gpm, NvLink, Samples, Violation
from monitor.nvml.workers import Job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from monitor.nvml.calls import Handle
    from monitor.nvml.workers import Ask, Values

    _Call = tuple[str, Callable[[Handle], Ask]]
    """What is called, and what prepares it; an exception: this GPU or its driver lacks it."""

_ENGINE_FIELDS = ("enc_pct", "dec_pct", "jpg_pct", "ofa_pct")
_ENGINES = tuple(Number(name, has_period=True) for name in _ENGINE_FIELDS)
_ECC = tuple(
    Number(name, (kind, pynvml.NVML_VOLATILE_ECC), is_wide=True)
    for name, kind in (
        ("ecc_corrected", pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        ("ecc_uncorrected", pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
    )
)


def _named(*numbers: Number) -> tuple[_Call, ...]:
    return tuple((number.name, number.bind) for number in numbers)


_SELDOM: dict[str, tuple[_Call, ...]] = {
    "m": (
        ("nvmlDeviceGetBAR1MemoryInfo", calls.bind_bar1),
        ("nvmlDeviceGetConfComputeProtectedMemoryUsage", calls.bind_protected),
    ),
    "q": (("nvmlDeviceGetComputeRunningProcesses", bind_processes),),
    "e": (*_named(*_ECC), ("nvmlDeviceGetRemappedRows", calls.bind_remap)),
}
"""What changes seldom; that an error of memory happens, an event reports at once."""
_RESTING: dict[str, tuple[_Call, ...]] = {"u": _named(*_ENGINES)}
"""What mostly rests, and while it does is asked as seldom."""
_SELDOM_S = 5.0
_SELDOM_FIELDS = (
    *_ENGINE_FIELDS,
    *("bar1_used_mib", "protected_used_mib", "processes"),
    *("ecc_corrected", "ecc_uncorrected", "remapped_rows", "remap_state"),
)


def _memory_temp(handle: Handle) -> Ask:
    fields = calls.Fields(handle, ((pynvml.NVML_FI_DEV_MEMORY_TEMP, 0),))

    def ask(values: Values) -> bool | None:
        found = fields.read(values)
        if found is not None and found[0] is not None:
            values["mem_temp_c"] = found[0]
        return calls.LOST in values

    return ask


def _violation(policy: int, name: str) -> Callable[[Handle], Ask]:
    return lambda handle: Violation(handle, policy, name).read


_OFTEN: dict[str, tuple[_Call, ...]] = {
    "p": (
        *_named(Number("power_w", divisor=1000)),
        ("nvmlDeviceGetTemperature", calls.bind_temperature),
        ("nvmlDeviceGetFieldValues", _memory_temp),
    ),
    "u": (("nvmlDeviceGetUtilizationRates", calls.bind_utilization),),
    "m": (("nvmlDeviceGetMemoryInfo", calls.bind_memory),),
    "t": _named(
        Number("pcie_rx_mb_s", (1,), divisor=1000), Number("pcie_tx_mb_s", (0,), divisor=1000)
    ),
    "c": _named(
        Number("mem_clock_mhz", (pynvml.NVML_CLOCK_MEM,)),
        Number("sm_clock_mhz", (pynvml.NVML_CLOCK_SM,)),
    ),
    "j": _named(Number("energy_j", divisor=1000, is_wide=True)),
    "r": _named(
        Number(
            "throttle_bits",
            is_wide=True,
            older=("nvmlDeviceGetCurrentClocksThrottleReasons",),  # before driver 535
        )
    ),
    "g": (("nvmlGpmSampleGet", lambda handle: Gpm(handle).read),),
    "v": (
        ("nvmlDeviceGetViolationStatus", _violation(pynvml.NVML_PERF_POLICY_POWER, "power_pct")),
        ("nvmlDeviceGetViolationStatus", _violation(pynvml.NVML_PERF_POLICY_THERMAL, "heat_pct")),
    ),
    "x": (("nvmlDeviceGetSamples", lambda handle: Samples(handle).read),),
    "n": (("nvmlDeviceGetFieldValues", lambda handle: NvLink(handle).read),),
}
"""What is asked at each poll."""


@dataclass
class Gpu:
    """One GPU: its index, and, once NVML has given a handle, the calls of a poll."""

    index: int
    letters: str
    monotonic: Callable[[], float] = time.monotonic
    handle: Handle | None = None
    jobs: list[Job] = field(default_factory=list)
    mig: Mig | None = None
    uuid: str | None = None
    """By which it is found again: an index may be another GPU's once NVML was started anew."""
    others: frozenset[str] = frozenset()
    """UUIDs of GPUs that have another index here."""
    is_denied: bool = False
    """Whether a device cgroup keeps it from us: nvmlDeviceGetCount counts it all the same."""
    _seldom: list[Job] = field(default_factory=list)
    _resting: list[Job] = field(default_factory=list)
    _do_rest: bool = True
    _known: Values = field(default_factory=dict)
    """The last readings of the seldom ones."""
    _next_s: float = -math.inf

    def __post_init__(self) -> None:
        self._open_job = Job(self.index, "nvmlDeviceGetHandleByIndex", self.open)

    def due(self) -> list[Job]:
        """Return the calls of this poll; without a handle, the one that may give it."""
        if not self.jobs:
            return [self._open_job]
        now_s = self.monotonic()
        if now_s < self._next_s:
            return self.jobs if self._do_rest else self.jobs + self._resting
        self._next_s, self._known = now_s + _SELDOM_S, {}
        return self.jobs + self._resting + self._seldom

    def complete(self, found: Values) -> Values:
        """Add what was asked for seldom to what a poll has found; a late call may still write."""
        values = dict(found)
        if not self._known:
            self._known = {name: values[name] for name in _SELDOM_FIELDS if name in values}
            self._do_rest = not any(values.get(name) for name in _ENGINE_FIELDS)
        return self._known | values

    def close(self) -> None:
        """Forget the handle: NVML is gone."""
        self.handle, self._known = None, {}
        self.jobs, self._seldom, self._resting = [], [], []
        self._next_s = -math.inf

    def open(self, _values: Values) -> None:
        """Get the handle, and prepare the calls; without one there are none. May hang."""
        try:
            handle = self._find()
        except pynvml.NVMLError as error:
            self.is_denied = error.value == pynvml.NVML_ERROR_NO_PERMISSION
            return
        uuid = quietly(lambda: f"{pynvml.nvmlDeviceGetUUID(handle)}")
        if uuid in self.others:
            return  # it has moved up to this index
        self.handle, self.uuid = handle, uuid or self.uuid
        self.mig = Mig.open(self.index, self.handle) if "m" in self.letters else None
        self._seldom, self._resting = self._prepare(_SELDOM), self._prepare(_RESTING)
        self.jobs = self._prepare(_OFTEN)
        if self.mig is not None:
            self.jobs.append(Job(self.index, "nvmlDeviceGetMigDeviceHandleByIndex", self.mig.read))

    def _find(self) -> Handle:
        if self.uuid is not None:
            return pynvml.nvmlDeviceGetHandleByUUID(self.uuid)
        return pynvml.nvmlDeviceGetHandleByIndex(self.index)

    def _prepare(self, calls_by_letter: Mapping[str, tuple[_Call, ...]]) -> list[Job]:
        """Make the calls of our letters, as far as this driver and nvidia-ml-py have them."""
        wanted = [call for letter in self.letters for call in calls_by_letter.get(letter, ())]
        bound = [(kind, self._bound(bind)) for kind, bind in wanted]
        return [Job(self.index, kind, ask) for kind, ask in bound if ask is not None]

    def _bound(self, bind: Callable[[Handle], Ask]) -> Ask | None:
        """Prepare a call; None where it cannot be had."""
        with suppress(Exception):
            return bind(self.handle)
        return None

    def facts(self) -> Iterator[tuple[str, str]]:
        """Return what does not change: UUID and name, limits, memory, MIG devices."""
        if self.handle is None:
            yield f"gpu {self.index}", "-"
            return
        name = quietly(lambda: f"{pynvml.nvmlDeviceGetName(self.handle)}")
        yield f"gpu {self.index}", f"{self.uuid} {name}" if self.uuid and name else "-"
        limit_mw = quietly(lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(self.handle))
        if limit_mw is not None:
            yield f"power_limit_w {self.index}", str(int(limit_mw) // 1000)
        top = quietly(lambda: pynvml.nvmlDeviceGetMaxClockInfo(self.handle, pynvml.NVML_CLOCK_SM))
        if top is not None:
            yield f"top_sm_mhz {self.index}", f"{top}"
        memory_mib = quietly(self._memory_mib)
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
