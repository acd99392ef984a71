"""What a preflight reads of a GPU besides the columns of a log: its links, and pages to retire."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pynvml

from monitor.logs.sample import total
from monitor.nvml.calls import quietly

if TYPE_CHECKING:
    from monitor.nvml.calls import Handle


def pcie_width(handle: Handle) -> int | None:
    """Lanes of its PCIe link, as it runs now: unlike its speed, idling does not lower them."""
    return quietly(lambda: int(pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle)))


def num_nvlinks(handle: Handle) -> int | None:
    """Count the NVLinks that are up; None where it has none at all."""
    ask = partial(pynvml.nvmlDeviceGetNvLinkState, handle)
    return total(quietly(partial(ask, link)) for link in range(pynvml.NVML_NVLINK_MAX_LINKS))


def num_pages_pending(handle: Handle) -> int | None:
    """Whether pages of memory wait to be retired, 1 or 0: GPUs before Ampere."""
    return quietly(lambda: int(pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle)))
