"""What a preflight reads of a GPU besides the columns of a log: its links, and pages to retire."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pynvml

from monitor.logs.sample import total
from monitor.nvml.calls import quietly

if TYPE_CHECKING:
    from monitor.nvml.calls import Handle


def read(handle: Handle) -> dict[str, int | None]:
    """Read a GPU once, by the names of the preflight; None where NVML has no answer.

    `pcie_width`: lanes as they run now: unlike the link's speed, idling does not lower them.
    `nvlinks`: how many are up. `ecc_pending`: whether pages of memory wait to be retired, 1 or 0:
    GPUs before Ampere.
    """
    link_state = partial(pynvml.nvmlDeviceGetNvLinkState, handle)
    links = range(pynvml.NVML_NVLINK_MAX_LINKS)
    return {
        "pcie_width": quietly(lambda: int(pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle))),
        "nvlinks": total(quietly(partial(link_state, link)) for link in links),
        "ecc_pending": quietly(lambda: int(pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))),
    }
