"""What of all that happens to GPUs the job is told."""

from __future__ import annotations

import json
import threading

import pytest

from monitor.logs.log_events import LogEvent
from monitor.recorder.gpu_faults import GpuFaults, fault
from rundir.events import EventLog


@pytest.mark.parametrize(
    ("kind", "details", "text"),
    [
        ("xid", {"xid": "79"}, "GPU 3: XID 79, the GPU has fallen off the bus"),
        ("xid", {"xid": "94"}, "GPU 3: XID 94, memory error, contained to this program"),
        ("ecc", {"bits": "double"}, "GPU 3: memory error that could not be corrected (double bit)"),
        ("lost", {}, "GPU 3: the driver has lost it"),
        *(("xid", {"xid": number}, None) for number in ("13", "31", "43", "45", "63", "9999", "")),
        ("ecc", {"bits": "single"}, None),
        ("back", {}, None),
        ("slow", {"call": "power"}, None),
        ("remap", {"rows": "1"}, None),
    ],
)
def test_what_is_a_fault_of_the_hardware(kind: str, details: dict[str, str], text: str) -> None:
    """Only that: no XID of a program's, none that only warns, no error that was corrected."""
    assert fault(LogEvent(0.0, kind, 3, details)) == text


def test_a_fault_is_reported_once() -> None:
    """All go into the log; the job hears of each fault once, without waiting for the file."""
    recorded: list[LogEvent] = []
    lines: list[bytes] = []
    told = threading.Semaphore(0)

    def deliver(line: bytes) -> None:
        lines.append(line)
        told.release()

    faults = GpuFaults(recorded.append, lambda: EventLog(deliver, "monitor", 2, "n1"), "n1")
    for number in ("79", "13", "79"):
        faults(LogEvent(0.0, "xid", 3, {"xid": number}))
    faults(LogEvent(0.0, "lost", 3))
    assert all(told.acquire(timeout=30) for _ in range(2))
    assert len(recorded) == 4
    events = [json.loads(line) for line in lines]
    assert {event["kind"] for event in events} == {"xid", "lost"}
    keys = {(event["event"], event["node"], event["gpu"]) for event in events}
    assert keys == {("gpu_fault", "n1", 3)}
