"""Reports broken hardware of a GPU to the job: a lost GPU, an XID, ECC."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from rundir import xids

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitor.logs.log_events import LogEvent
    from rundir.events import EventLog


class GpuFaults:
    """Hands on what happens to GPUs, and reports each fault of their hardware once.

    Args:
        record: takes everything that happens.
        open_log: gives the run's log of events, at the first fault.
        node: DDP_NODE, for the events.

    """

    def __init__(
        self, record: Callable[[LogEvent], None], open_log: Callable[[], EventLog], node: str
    ) -> None:
        self._record, self._open_log, self._node = record, open_log, node
        self._reported: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, event: LogEvent) -> None:
        """Take what happened, from any thread; the file system may hang, and holds up none."""
        self._record(event)
        text = fault(event)
        with self._lock:
            if text is None or text in self._reported:
                return
            self._reported.add(text)
        keys = {"node": self._node, "gpu": event.gpu, "kind": event.kind, "text": text}
        threading.Thread(
            target=lambda: self._open_log().write("gpu_fault", **keys),
            name="gpu-fault",
            daemon=True,
        ).start()


def fault(event: LogEvent) -> str | None:
    """Say in one line what broke; None: nothing, or it is no fault of the hardware."""
    gpu = "a GPU" if event.gpu is None else f"GPU {event.gpu}"
    if event.kind == "lost":
        return f"{gpu}: the driver has lost it"
    if event.kind == "ecc" and event.details.get("bits") == "double":
        return f"{gpu}: memory error that could not be corrected (double bit)"
    number = event.details.get("xid", "")
    if event.kind == "xid" and number.isdecimal() and int(number) in xids.BROKEN:
        return f"{gpu}: XID {number}, {xids.look_up(number).meaning}"
    return None
