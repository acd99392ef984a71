"""The GPUs of this node through NVML. The only file that imports pynvml.

Nothing here raises: a reading that NVML refuses is None, a lost GPU keeps its place with nothing
but its index, and when NVML itself is gone it is started again now and then.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pynvml

from monitor.sample import GpuSample, Reading

if TYPE_CHECKING:
    from collections.abc import Callable

_MIB = 2**20
_GPM_METRICS = {
    "sm_active_pct": 2,
    "tensor_active_pct": 5,
    "dram_active_pct": 10,
}
_GPM_MIN_GAP_S = 0.1  # NVML's own rule: two samples lie over 100 ms apart

Handle = Any  # pynvml is untyped: a ctypes pointer


class _GpuLostError(Exception):
    """The GPU answers nothing more in this look."""


def _memory_temp_c(handle: Handle) -> int:
    field = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_MEMORY_TEMP])[0]
    if field.nvmlReturn != pynvml.NVML_SUCCESS:  # each entry has a return code of its own
        raise pynvml.NVMLError(field.nvmlReturn)
    return int(field.value.uiVal)


def _memory(handle: Handle) -> Any:  # noqa: ANN401 - pynvml is untyped: a ctypes structure
    try:  # the figures of driver 525 and later: without what the driver keeps for itself
        return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError_FunctionNotFound:
        return pynvml.nvmlDeviceGetMemoryInfo(handle)


def _fb_used_mib(handle: Handle) -> int:
    return int(_memory(handle).used) // _MIB


def _throttle_bits(handle: Handle) -> int:
    try:
        return int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except pynvml.NVMLError_FunctionNotFound:  # its name before driver 535
        return int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def _utilization(handle: Handle) -> dict[str, int]:
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    return {"sm_pct": rates.gpu, "mem_pct": rates.memory}


def _one(name: str, ask: Callable[[Handle], int]) -> Callable[[Handle], dict[str, int]]:
    return lambda handle: {name: ask(handle)}


_PUMT: tuple[Callable[[Handle], dict[str, int]], ...] = (
    # NVML's mW, KB/s and bytes become the log's W, MB/s and MiB: cut, as dmon cuts them
    _one("power_w", lambda h: pynvml.nvmlDeviceGetPowerUsage(h) // 1000),
    _one("temp_c", lambda h: pynvml.nvmlDeviceGetTemperature(h, pynvml.NVML_TEMPERATURE_GPU)),
    _one("mem_temp_c", _memory_temp_c),
    _utilization,
    _one("enc_pct", lambda h: pynvml.nvmlDeviceGetEncoderUtilization(h)[0]),
    _one("dec_pct", lambda h: pynvml.nvmlDeviceGetDecoderUtilization(h)[0]),
    _one("jpg_pct", lambda h: pynvml.nvmlDeviceGetJpgUtilization(h)[0]),
    _one("ofa_pct", lambda h: pynvml.nvmlDeviceGetOfaUtilization(h)[0]),
    _one("fb_used_mib", _fb_used_mib),
    _one("bar1_used_mib", lambda h: pynvml.nvmlDeviceGetBAR1MemoryInfo(h).bar1Used // _MIB),
    _one(
        "protected_used_mib",
        lambda h: pynvml.nvmlDeviceGetConfComputeProtectedMemoryUsage(h).used // _MIB,
    ),
    _one("pcie_rx_mb_s", lambda h: pynvml.nvmlDeviceGetPcieThroughput(h, 1) // 1000),
    _one("pcie_tx_mb_s", lambda h: pynvml.nvmlDeviceGetPcieThroughput(h, 0) // 1000),
)
_FURTHER: dict[str, tuple[Callable[[Handle], dict[str, int]], ...]] = {
    "c": (
        _one("mem_clock_mhz", lambda h: pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_MEM)),
        _one("sm_clock_mhz", lambda h: pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_SM)),
    ),
    "j": (_one("energy_j", lambda h: pynvml.nvmlDeviceGetTotalEnergyConsumption(h) // 1000),),
    "r": (_one("throttle_bits", _throttle_bits),),
}


def _ask(question: Callable[[Handle], dict[str, int]], handle: Handle) -> dict[str, int]:
    """Ask one thing; nothing where this GPU or driver does not tell.

    Raises:
        _GpuLostError: the GPU, or NVML itself, is gone: further questions are useless.

    """
    try:
        return question(handle)
    except (
        pynvml.NVMLError_GpuIsLost,
        pynvml.NVMLError_Uninitialized,
        pynvml.NVMLError_DriverNotLoaded,
    ) as error:
        raise _GpuLostError from error
    except pynvml.NVMLError:
        return {}


class _Gpm:
    """SM, tensor and DRAM activity of one GPU between two looks (Hopper and later)."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._older = pynvml.nvmlGpmSampleAlloc()
        self._newer = pynvml.nvmlGpmSampleAlloc()
        self._taken_s: float | None = None

    @classmethod
    def open(cls, handle: Handle) -> _Gpm | None:
        """Allocate the two samples, or answer None where GPM is not supported."""
        try:
            if pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                return cls(handle)
        except pynvml.NVMLError:
            pass
        return None

    def read(self, _handle: Handle) -> dict[str, int]:
        now_s = time.monotonic()
        before_s = self._taken_s
        if before_s is not None and now_s - before_s < _GPM_MIN_GAP_S:
            return {}
        pynvml.nvmlGpmSampleGet(self._handle, self._newer)
        self._older, self._newer, self._taken_s = self._newer, self._older, now_s
        return {} if before_s is None else self._between(self._newer, self._older)

    @staticmethod
    def _between(first: Handle, second: Handle) -> dict[str, int]:
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(_GPM_METRICS)
        request.sample1, request.sample2 = first, second
        for entry, metric_id in zip(request.metrics, _GPM_METRICS.values(), strict=False):
            entry.metricId = metric_id
        pynvml.nvmlGpmMetricsGet(request)
        answers = zip(_GPM_METRICS, request.metrics, strict=False)
        # a NaN is what GPM gives for an idle GPU on some drivers: no reading
        return {
            name: round(entry.value)
            for name, entry in answers
            if entry.nvmlReturn == pynvml.NVML_SUCCESS and entry.value == entry.value
        }


@dataclass
class _Gpu:
    """One GPU: its index, and its handle once NVML has given one."""

    index: int
    letters: str
    handle: Handle | None = None
    gpm: _Gpm | None = None

    def read(self) -> GpuSample:
        values: dict[str, int] = {}
        try:
            self._open()
            for question in self._questions():
                values |= _ask(question, self.handle)
        except _GpuLostError:
            values = {}
        return GpuSample(index=self.index, **values)

    def fact(self) -> str:
        """UUID and name, or what is known of them."""
        try:
            self._open()
            uuid = pynvml.nvmlDeviceGetUUID(self.handle)
            return f"{uuid} {pynvml.nvmlDeviceGetName(self.handle)}"
        except (pynvml.NVMLError, _GpuLostError, UnicodeDecodeError):
            return "-"

    def memory_mib(self) -> int | None:
        """All the memory it has; None where the driver does not tell."""
        try:
            self._open()
            return int(_memory(self.handle).total) // _MIB
        except (pynvml.NVMLError, _GpuLostError):
            return None

    def power_limit_w(self) -> int | None:
        """What it may draw; None where that is not told."""
        try:
            self._open()
            return int(pynvml.nvmlDeviceGetEnforcedPowerLimit(self.handle)) // 1000
        except (pynvml.NVMLError, _GpuLostError):
            return None

    def _open(self) -> None:
        if self.handle is not None:
            return
        try:
            self.handle = pynvml.nvmlDeviceGetHandleByIndex(self.index)
        except pynvml.NVMLError as error:
            raise _GpuLostError from error
        self.gpm = _Gpm.open(self.handle) if "g" in self.letters else None

    def _questions(self) -> tuple[Callable[[Handle], dict[str, int]], ...]:
        further = tuple(ask for letter in self.letters for ask in _FURTHER.get(letter, ()))
        return _PUMT + further + ((self.gpm.read,) if self.gpm else ())


class Nvml:
    """All GPUs of this node.

    Args:
        letters: the column letters of the log; what no column shows is not asked for.
        retry_s: how long to wait before NVML is started again after it was found dead.
        monotonic: the clock of that wait, in seconds.

    """

    def __init__(
        self,
        letters: str,
        retry_s: float = 60.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._letters = letters
        self._retry_s = retry_s
        self._monotonic = monotonic
        self._next_start_s = monotonic()
        self._alive = False
        self._gpus: tuple[_Gpu, ...] = ()
        self._facts: tuple[tuple[str, str], ...] = ()

    def read(self) -> Reading:
        """Look once; raises nothing. GPUs seen before keep their row when NVML is dead."""
        if not self._alive and self._monotonic() >= self._next_start_s:
            self._start()
        if not self._alive:
            return Reading(tuple(GpuSample(index=gpu.index) for gpu in self._gpus), self._facts)
        samples = tuple(gpu.read() for gpu in self._gpus)
        if self._gpus and all(s == GpuSample(index=s.index) for s in samples):
            self._stop()  # not one reading of any GPU: the library is dead, not a GPU
        return Reading(samples, self._facts)

    def _start(self) -> None:
        self._next_start_s = self._monotonic() + self._retry_s
        try:
            pynvml.nvmlInit()
            num_gpus = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            self._facts = self._with_count(f"no readings: {error}")
            return
        # a GPU that has fallen off the bus may no longer be counted: its row stays
        num_gpus = max(num_gpus, len(self._gpus))
        self._gpus = tuple(_Gpu(index, self._letters) for index in range(num_gpus))
        self._alive = num_gpus > 0
        self._facts = self._learn()
        self._facts = self._with_count(
            str(num_gpus) if num_gpus else "no readings: NVML finds none"
        )

    def _learn(self) -> tuple[tuple[str, str], ...]:
        facts = [("driver", _text(pynvml.nvmlSystemGetDriverVersion))]
        facts.append(("nvml", _text(pynvml.nvmlSystemGetNVMLVersion)))
        known = dict(self._facts)
        for gpu in self._gpus:
            key = f"gpu {gpu.index}"
            fact = gpu.fact()
            facts.append((key, known.get(key, "-") if fact == "-" else fact))
            limit_w = gpu.power_limit_w()
            if limit_w is not None:
                facts.append((f"power_limit_w {gpu.index}", str(limit_w)))
            memory_mib = gpu.memory_mib()
            if memory_mib is not None:
                facts.append((f"memory_mib {gpu.index}", str(memory_mib)))
        return tuple(facts)

    def _with_count(self, text: str) -> tuple[tuple[str, str], ...]:
        """Say first how many GPUs there are, or why there are no readings."""
        return (("gpus", text), *(fact for fact in self._facts if fact[0] != "gpus"))

    def _stop(self) -> None:
        self._alive = False
        self._facts = self._with_count("no readings: NVML answers nothing more")
        self._next_start_s = self._monotonic() + self._retry_s
        for gpu in self._gpus:
            gpu.handle = gpu.gpm = None
        with suppress(pynvml.NVMLError):  # it may be dead already
            pynvml.nvmlShutdown()


def _text(ask: Callable[[], str]) -> str:
    try:
        return ask()
    except (pynvml.NVMLError, UnicodeDecodeError):
        return "-"
