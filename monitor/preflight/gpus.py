"""The GPUs of a node by NVML: memory errors, clocks, links, and who else is there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from monitor.logs import throttling
from monitor.nvml import links
from monitor.nvml.source import Nvml
from monitor.stop import ProcessStop
from rundir.gpus import visible
from rundir.preflight.verdict import Reading
from rundir.procfs import environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from monitor.logs.log_events import LogEvent
    from monitor.logs.sample import GpuSample
    from monitor.nvml.chosen import Named

_LETTERS = "pmerq"
"""Columns of the log whose readings are wanted."""


def read(named: Named, launch_id: str, add: Callable[[Reading], object]) -> None:
    """Poll the job's GPUs once, and add what was read, as it comes."""
    events: list[LogEvent] = []
    nvml = Nvml(_LETTERS, ProcessStop(os.getppid()), events.append, named=named)
    polled = nvml.read()
    for reading in _of_facts(dict(polled.facts), named):
        add(reading)
    for gpu in polled.gpus:
        if gpu.index is not None:
            for reading in _of_sample(gpu, launch_id):
                add(reading)
    for event in events:
        for reading in _of_event(event):
            add(reading)
    for index, handle in nvml.handles.items():
        for name, value in links.read(handle).items():
            if value is not None:
                add(Reading(name, value, f"GPU {index}"))


def _of_facts(facts: Mapping[str, str], named: Named) -> Iterator[Reading]:
    driver, gpus = facts.get("driver", "-"), facts["gpus"]
    if driver != "-":
        yield Reading("driver", driver)
    if not any(name.startswith("mig ") for name in facts):  # a job's instances may share one
        yield Reading("nvml_gpus", int(gpus)) if gpus.isdecimal() else Reading("nvml_gpus", 0, gpus)
    if "mismatch" in gpus and _has_gpus(named):  # all nodes may share it, and no count differs
        yield Reading("failed", 1, gpus)


def _has_gpus(named: Named) -> bool:
    """Whether the job has GPUs here; without one of Slurm's, all there are."""
    if named.visible is None:
        return "SLURM_JOB_ID" not in os.environ
    return bool(visible(named.visible))


def _of_sample(gpu: GpuSample, launch_id: str) -> Iterator[Reading]:
    sample: Any = gpu  # its fields are made from the registry of columns
    what = f"GPU {gpu.index}"
    if sample.ecc_uncorrected is not None:
        yield Reading("ecc_uncorrected", sample.ecc_uncorrected, what)
    if sample.throttle_bits is not None:
        names = throttling.names(sample.throttle_bits & throttling.FAULT)
        yield Reading("held_clocks", len(names), ", ".join([what, *names]))
    own = [pid for pid, _ in gpu.processes if environment(pid).get("DDP_LAUNCH_ID") == launch_id]
    others = [pid for pid, _ in gpu.processes if pid not in own]
    words = f"{what}, pid {' '.join(map(str, others))}" if others else what
    yield Reading("foreign_processes", len(others), words)
    if sample.fb_used_mib is not None and not own:
        yield Reading("foreign_mib", sample.fb_used_mib, what)


def _of_event(event: LogEvent) -> Iterator[Reading]:
    """What the poll reports besides its numbers: rows of memory, lost GPUs, calls that hang."""
    what = f"GPU {event.gpu}" if event.gpu is not None else "NVML"
    if event.kind == "remap":
        yield Reading("remap_pending", int(event.details["pending"] == "yes"), what)
        yield Reading("remap_failed", int(event.details["failed"] == "yes"), what)
    elif event.kind == "lost":
        yield Reading("failed", 1, f"{what} is lost")
    elif event.kind == "slow":
        yield Reading("hung", 1, f"{what}: {event.details['call']}")
