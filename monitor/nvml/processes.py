"""Which processes compute on a GPU, and how much of its memory each holds."""

from __future__ import annotations

import struct
from ctypes import byref, c_char, c_uint
from typing import TYPE_CHECKING

from pynvml import (
    NVML_ERROR_FUNCTION_NOT_FOUND,
    NVML_ERROR_INSUFFICIENT_SIZE,
    NVMLError,
    nvmlSystemGetDriverVersion,
)

from monitor.nvml.calls import MIB, Handle, function, refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitor.nvml.workers import Values

# c_nvmlProcessInfo_v2_t (also of v3): pid, used memory in bytes, GPU and compute instance.
_NEW = struct.Struct("<I4xQII")
_WIDE = struct.Struct("<I4xQIIQ")  # and protected memory: drivers 535.43 to 535.86, in v3 alone
_WIDE_DRIVERS = (535, 43), (535, 86)
_OLD = struct.Struct("<I4xQ")  # before driver 450
_NAMES = {
    "nvmlDeviceGetComputeRunningProcesses_v3": _NEW,
    "nvmlDeviceGetComputeRunningProcesses_v2": _NEW,
    "nvmlDeviceGetComputeRunningProcesses": _OLD,
}
_UNKNOWN = 2**64 - 1
_ROOM = 32
_MAX_ROOM = 4096


class Processes:
    """The processes of one GPU, as (pid, MiB) pairs; the pids are the host's."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._call, self._layout = _find()
        self._count = c_uint()
        self._make_room(_ROOM)

    def _make_room(self, num: int) -> None:
        self._room = num
        buffer = (c_char * (num * self._layout.size))()
        self._bytes = memoryview(buffer)
        self._given = (self._handle, byref(self._count), byref(buffer))

    def read(self, values: Values) -> bool | None:
        """Poll once: `processes`."""
        code = self._ask()
        if code:
            return refused(values, code)
        end = self._count.value * self._layout.size
        values["processes"] = tuple(
            (pid, None if used == _UNKNOWN else used // MIB)
            for pid, used, *_ in self._layout.iter_unpack(self._bytes[:end])
        )
        return None

    def _ask(self) -> int:
        if self._call is None:
            return int(NVML_ERROR_FUNCTION_NOT_FOUND)
        self._count.value = self._room
        code = self._call(*self._given)
        if code == NVML_ERROR_INSUFFICIENT_SIZE and self._room < self._count.value <= _MAX_ROOM:
            self._make_room(2 * self._count.value)
            self._count.value = self._room
            code = self._call(*self._given)
        return code


def _find() -> tuple[Callable[..., int] | None, struct.Struct]:
    for name, layout in _NAMES.items():
        call = function(name)
        if call is not None:
            return call, _WIDE if name.endswith("_v3") and _is_wide() else layout
    return None, _OLD


def _is_wide() -> bool:
    """Whether this driver is one of those whose entries are longer than before and since."""
    try:
        major, minor, *_ = map(int, str(nvmlSystemGetDriverVersion()).split("."))
    except (NVMLError, ValueError):
        return False
    first, last = _WIDE_DRIVERS
    return first <= (major, minor) <= last
