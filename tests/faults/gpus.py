"""GPUs that break when a fault strikes: a stub driver does what a file for each node says."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults import injectors
from tests.faults.layout import NUM_NODES, PREFIX
from tests.monitor import stub_driver

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.faults.injectors import Injector
    from tests.faults.job import FaultJob
    from tests.faults.places import Tidy

WITH_GPUS = {
    "DDP_PYTHON": str(Path(__file__).with_name("gpu_python.sh")),
    "GPU_PYTHON": sys.executable,
}
"""Of a job whose monitors see GPUs."""


def nodes_with_gpus(job: FaultJob) -> Tidy:
    """Build the driver that follows a file for each node."""
    build_driver(job.directory, [f"{PREFIX}{number}" for number in range(1, NUM_NODES + 1)])
    return lambda: None


def pending_at_first(node: str) -> Callable[[FaultJob], Tidy]:
    """Build that driver, with pages of this node's GPU that wait to be retired."""

    def prepare(job: FaultJob) -> Tidy:
        tidy = nodes_with_gpus(job)
        (job.directory / "driver" / node).write_text("gpus 1\nset pages_pending 0 1\n")
        return tidy

    return prepare


def pending(node: str) -> Injector:
    """Give the moment at which they began to wait: just before the job was submitted."""
    return lambda job: (job.directory / "driver" / node).stat().st_mtime


def build_driver(directory: Path, nodes: Sequence[str]) -> Path:
    """Build it where gpu_python.sh finds it by FAULT_DIR; the folder of the nodes' files."""
    folder = directory / "driver"
    folder.mkdir()
    stub_driver.build(folder)
    for node in nodes:
        (folder / node).write_text("gpus 1\n")
    return folder


OFF_THE_BUS, LOST = "event 8 0 79", "lost 0 0"
"""What the driver does then: it reports XID 79, or answers only that the GPU is lost."""


def break_gpu(rank: int, how: str = OFF_THE_BUS) -> Injector:
    """Let the driver of a rank's node do this, and the rank crash."""

    def inject(job: FaultJob) -> float:
        node, moment = job.node_of(rank), time.time()
        beside = job.directory / "driver" / "new"
        beside.write_text(f"gpus 1\n{how}\n")
        beside.replace(job.directory / "driver" / node)
        job.until_event("gpu_fault", attempt=job.attempt)
        injectors.strike("segfault", rank)(job)
        return moment

    return inject
