"""Which processes compute on a GPU, and how much of its memory each holds."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from pynvml import NVMLError, nvmlSystemGetDriverVersion

from monitor.nvml.calls import LOST, MIB, Entries, Handle, function

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitor.nvml.workers import Ask, Values

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
_NUM = 32


def bind_processes(handle: Handle) -> Ask:
    """The processes of one GPU, as (pid, MiB) pairs; the pids are the host's."""
    entries = Entries(*_find(), _NUM, lambda count, places: (handle, count, places))

    def ask(values: Values) -> bool | None:
        found = entries.read(values)
        if found is None:
            return LOST in values
        values["processes"] = tuple(
            (pid, None if used == _UNKNOWN else used // MIB) for pid, used, *_ in found
        )
        return None

    return ask


def _find() -> tuple[Callable[..., int], struct.Struct]:
    call = function(*_NAMES)
    name = call.__name__
    return call, _WIDE if name.endswith("_v3") and _is_wide() else _NAMES[name]


def _is_wide() -> bool:
    """Whether this driver is one of those whose entries are longer than before and since."""
    try:
        major, minor, *_ = map(int, str(nvmlSystemGetDriverVersion()).split("."))
    except (NVMLError, ValueError):
        return False
    first, last = _WIDE_DRIVERS
    return first <= (major, minor) <= last
