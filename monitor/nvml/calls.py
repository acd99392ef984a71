"""Calls of NVML that a poll can afford by the hundred: bound once, answered into a kept buffer.

nvidia-ml-py has loaded the library and defines the structures. Its functions look their symbol up,
make a buffer and check at every call, which costs several times what the call itself does.
Nothing here raises: NVML's answer is a number, and one that is not 0 leaves no value.
"""

from __future__ import annotations

from contextlib import suppress
from ctypes import byref, c_char, c_int, c_uint, c_ulonglong
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, TypeVar

import pynvml

from monitor.logs.columns import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monitor.nvml.workers import Ask, Values

T = TypeVar("T")
Handle = Any  # pynvml is untyped: a ctypes pointer

GONE = frozenset(
    {
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_RESET_REQUIRED,
        pynvml.NVML_ERROR_GPU_NOT_FOUND,
    }
)
"""The GPU is gone, at least until somebody resets it: further questions are useless."""

ENDED = frozenset({pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_DRIVER_NOT_LOADED})
"""NVML itself is gone, and with it the readings of all GPUs."""

LOST = "lost"
"""What a call leaves among the values where the GPU is gone, or NVML itself."""

OVER = "over"
"""What it leaves besides where it is NVML."""

MIB = 2**20

_FUNCTIONS = {column.field: column.nvml for column in COLUMNS}

_TEMPERATURE_V1 = 0x100000C
"""nvmlTemperature_v1, which older nvidia-ml-py lack: version, sensor and answer, 12 bytes."""


def function(*names: str) -> Callable[..., int]:
    """Bind a function of the library that `nvmlInit` has loaded, by the first name that it knows.

    Raises:
        AttributeError: this driver lacks it.

    """
    known = (name for name in names if hasattr(pynvml.nvmlLib, name))
    call: Callable[..., int] = getattr(pynvml.nvmlLib, next(known, names[0]))
    return call


def quietly(ask: Callable[[], T]) -> T | None:
    """Ask by nvidia-ml-py; None where NVML refuses, or answers what is no text."""
    try:
        return ask()
    except (pynvml.NVMLError, UnicodeDecodeError):
        return None


def refused(values: Values, code: int) -> bool:
    """Take note of an answer that is none; True where the GPU is gone, or NVML."""
    if code not in GONE and code not in ENDED:
        return False
    values.clear()
    values[LOST] = True
    if code in ENDED:
        values[OVER] = True
    return True


def asking(
    call: Callable[..., int], given: tuple[Any, ...], take: Callable[[Values], object]
) -> Ask:
    """Prepare a call; `take` leaves its answer among the values."""

    def ask(values: Values) -> bool | None:
        code = call(*given)
        if code:
            return refused(values, code)
        take(values)
        return None

    return ask


@dataclass(frozen=True, slots=True)
class Number:
    """A function that answers one number, as the registry of columns names it, and its unit."""

    field: str
    given: tuple[int, ...] = ()
    """What it is given before the place for its answer."""
    divisor: int = 1
    """NVML's mW, KB/s and bytes become the log's W, MB/s and MiB: cut, as dmon cuts them."""
    is_wide: bool = False
    """The answer has 64 bits."""
    has_period: bool = False
    """It answers the length of its window, too."""
    older: tuple[str, ...] = ()
    """Its names under older drivers."""

    @property
    def name(self) -> str:
        """The function."""
        return _FUNCTIONS[self.field]

    def bind(self, handle: Handle) -> Ask:
        """Make the call for one GPU; AttributeError if this driver lacks it."""
        call = function(self.name, *self.older)
        answer = c_ulonglong() if self.is_wide else c_uint()
        further = (byref(c_uint()),) if self.has_period else ()
        given = (handle, *map(c_int, self.given), byref(answer), *further)
        name, divisor = self.field, self.divisor

        def take(values: Values) -> None:
            values[name] = answer.value // divisor

        return asking(call, given, take)


def bind_utilization(handle: Handle) -> Ask:
    """Share of time in which kernels ran, and in which memory was moved."""
    answer = (c_uint * 2)()

    def take(values: Values) -> None:
        values["sm_pct"], values["mem_pct"] = answer

    return asking(function("nvmlDeviceGetUtilizationRates"), (handle, byref(answer)), take)


def bind_temperature(handle: Handle) -> Ask:
    """Temperature of the GPU: by the name that goes away with CUDA 14, else by its successor."""
    sensor = pynvml.NVML_TEMPERATURE_GPU
    answer = (c_int * 3)(_TEMPERATURE_V1, sensor, 0)

    def take(values: Values) -> None:
        values["temp_c"] = answer[2]

    with suppress(AttributeError):
        return Number("temp_c", (sensor,)).bind(handle)
    return asking(function("nvmlDeviceGetTemperatureV"), (handle, byref(answer)), take)


def bind_memory(handle: Handle) -> Ask:
    """Memory in use: from driver 525 on without what the driver keeps for itself."""
    with suppress(AttributeError):
        answer = pynvml.c_nvmlMemory_v2_t()
        answer.version = pynvml.nvmlMemory_v2
        return _bind_used("nvmlDeviceGetMemoryInfo_v2", handle, answer, "used", "fb_used_mib")
    answer = pynvml.c_nvmlMemory_t()
    return _bind_used("nvmlDeviceGetMemoryInfo", handle, answer, "used", "fb_used_mib")


def bind_bar1(handle: Handle) -> Ask:
    """Memory that is mapped for the host."""
    answer = pynvml.c_nvmlBAR1Memory_t()
    return _bind_used("nvmlDeviceGetBAR1MemoryInfo", handle, answer, "bar1Used", "bar1_used_mib")


def bind_protected(handle: Handle) -> Ask:
    """Memory of confidential computing."""
    name, answer = "nvmlDeviceGetConfComputeProtectedMemoryUsage", pynvml.c_nvmlMemory_t()
    return _bind_used(name, handle, answer, "used", "protected_used_mib")


def _bind_used(
    call: str,
    handle: Handle,
    answer: Any,  # noqa: ANN401 - pynvml is untyped: a ctypes structure
    member: str,
    name: str,
) -> Ask:
    """Ask for a structure, of which one member in bytes is wanted, in MiB."""

    def take(values: Values) -> None:
        values[name] = getattr(answer, member) // MIB

    return asking(function(call), (handle, byref(answer)), take)


def bind_remap(handle: Handle) -> Ask:
    """Rows of memory replaced for good; `remap_state`: whether more is to be done."""
    corrected, uncorrected, is_pending, has_failed = answers = [c_uint() for _ in range(4)]

    def take(values: Values) -> None:
        values["remapped_rows"] = corrected.value + uncorrected.value
        values["remap_state"] = (bool(is_pending.value), bool(has_failed.value))

    given = (handle, *map(byref, answers))
    return asking(function("nvmlDeviceGetRemappedRows"), given, take)


class Fields:
    """Some field values of one GPU; each has a return code of its own."""

    def __init__(self, handle: Handle, ids: tuple[tuple[int, int], ...]) -> None:
        """Prepare to ask for (field, scope) pairs."""
        self._call = function("nvmlDeviceGetFieldValues")
        self._answers = (pynvml.c_nvmlFieldValue_t * len(ids))()
        for answer, (number, scope) in zip(self._answers, ids, strict=True):
            answer.fieldId, answer.scopeId = number, scope
        self._given = (handle, c_int(len(ids)), byref(self._answers))
        self._unpack = Struct("<" + _FIELD * len(ids)).unpack_from

    def read(self, values: Values) -> list[int | None] | None:
        """Ask for all; None if NVML refused, an entry is None if it refused that one."""
        code = self._call(*self._given)
        if code:
            refused(values, code)
            return None
        answers = self._unpack(self._answers)
        return [
            None if answers[i + 1] else answers[i + 2] & _MASKS.get(answers[i], _NARROW)
            for i in range(0, len(answers), 3)
        ]


class Entries:
    """A list that NVML writes into a buffer; where that is too small, it is asked once more."""

    def __init__(
        self,
        call: Callable[..., int],
        layout: Struct,
        num: int,
        given: Callable[[Any, Any], tuple[Any, ...]],
    ) -> None:
        """Prepare a call.

        Args:
            call: the function.
            layout: of an entry.
            num: how many there is room for at first.
            given: what the call is given, made of the places for the entries' number and for them.

        """
        self._call, self._layout, self._arguments = call, layout, given
        self._count = c_uint()
        self._make_room(num)

    def read(self, values: Values) -> Iterator[tuple[int, ...]] | None:
        """Ask for the entries; None if NVML refused."""
        code = self._ask()
        if code:
            refused(values, code)
            return None
        return self._layout.iter_unpack(self._bytes[: self._count.value * self._layout.size])

    def _make_room(self, num: int) -> None:
        buffer = (c_char * (num * self._layout.size))()
        self._num, self._bytes = num, memoryview(buffer)
        self._given = self._arguments(byref(self._count), byref(buffer))

    def _ask(self) -> int:
        self._count.value = self._num
        code = self._call(*self._given)
        is_small = code == pynvml.NVML_ERROR_INSUFFICIENT_SIZE
        if is_small and self._num < self._count.value <= _MAX_ENTRIES:
            self._make_room(2 * self._count.value)
            self._count.value = self._num
            code = self._call(*self._given)
        return code


_MAX_ENTRIES = 4096

_FIELD = "24xiiQ"
"""c_nvmlFieldValue_t: what was asked and when; the type of the value, return code, and value."""

_NARROW = 2**32 - 1
_MASKS = {
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: 2**64 - 1,
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: 2**64 - 1,
}
