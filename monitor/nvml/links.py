"""What a preflight reads of a GPU besides the columns of a log: its links, and pages to retire."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pynvml

if TYPE_CHECKING:
    from monitor.nvml.calls import Handle


def pcie_width(handle: Handle) -> int | None:
    """Lanes of its PCIe link, as it runs now: unlike its speed, idling does not lower them."""
    with suppress(pynvml.NVMLError):
        return int(pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle))
    return None


def num_nvlinks(handle: Handle) -> int | None:
    """Count the NVLinks that are up; None where it has none at all."""
    states = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        with suppress(pynvml.NVMLError):
            states.append(int(pynvml.nvmlDeviceGetNvLinkState(handle, link)))
    return sum(states) if states else None


def num_pages_pending(handle: Handle) -> int | None:
    """Whether pages of memory wait to be retired, 1 or 0: GPUs before Ampere."""
    with suppress(pynvml.NVMLError):
        return int(pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))
    return None
