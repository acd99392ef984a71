"""The MIG devices of a GPU: who they are, and how much of their memory is used.

`dmon` does not list them, and a second row for a GPU would be counted twice by every reader.
So they stand in `##` lines: `mig 0.1` is about GPU 0's second MIG device, and `mig_used_mib 0` of
the memory in use of all of them, in their order, at the sample that follows.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pynvml

from monitor.nvml.calls import MIB, Handle, quietly, refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitor.nvml.workers import Values

_MAX_DEVICES = 8


class Mig:
    """The MIG devices of one GPU, as they are when it is opened."""

    def __init__(self, index: int, devices: list[tuple[int, Handle]]) -> None:
        self._index = index
        self._devices = devices

    @classmethod
    def open(cls, index: int, handle: Handle) -> Mig | None:
        """Find them; None where MIG is off, or not known to this GPU or driver."""
        try:
            if pynvml.nvmlDeviceGetMigMode(handle)[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
                return None
            num_places = min(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle), _MAX_DEVICES)
        except pynvml.NVMLError:
            return None
        devices = []
        for place in range(num_places):
            found = quietly(partial(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place))
            if found is not None:
                devices.append((place, found))
        return cls(index, devices)

    def facts(self) -> tuple[tuple[str, str], ...]:
        """Return UUID, memory and instance ids, a line a device; one line if there are none."""
        if not self._devices:
            return ((f"mig {self._index}", "enabled, without devices"),)
        return tuple(
            (f"mig {self._index}.{place}", _describe(device)) for place, device in self._devices
        )

    def read(self, values: Values) -> bool | None:
        """Read their memory: `mig_used_mib`, None for one without a reading."""
        used: list[int | None] = []
        for _, device in self._devices:
            try:
                used.append(int(pynvml.nvmlDeviceGetMemoryInfo(device).used) // MIB)
            except pynvml.NVMLError as error:
                if refused(values, error.value):
                    return True
                used.append(None)
        values["mig_used_mib"] = tuple(used)
        return None


def _describe(device: Handle) -> str:
    questions: tuple[tuple[str, Callable[[], object]], ...] = (
        ("", lambda: pynvml.nvmlDeviceGetUUID(device)),
        ("memory_mib=", lambda: pynvml.nvmlDeviceGetMemoryInfo(device).total // MIB),
        ("gi=", lambda: pynvml.nvmlDeviceGetGpuInstanceId(device)),
        ("ci=", lambda: pynvml.nvmlDeviceGetComputeInstanceId(device)),
    )
    answers = ((name, quietly(ask)) for name, ask in questions)
    return " ".join(f"{name}{'-' if answer is None else answer}" for name, answer in answers)
