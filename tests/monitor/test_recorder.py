import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

import psutil
import pytest

from monitor import gutil
from monitor.host import Host
from monitor.recorder import BoundedSource, Recorder, SystemClock
from monitor.sample import GpuSample, HostSample, Reading
from monitor.stop import Reason

PUMT = gutil.Layout("pumt")


@dataclass
class World:
    """Clock, stop, GPUs, host and log at once: time goes on only as it is told."""

    num_cycles: int
    look_s: list[float] = field(default_factory=list)
    reading: Callable[[], Reading] = lambda: Reading((GpuSample(index=0),))
    offset: timedelta = timedelta(hours=2)
    seconds: float = 100.0
    looks: list[float] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    full: bool = False
    num_lost: int = 0

    def now(self) -> datetime:
        """Two hours east of UTC, unless told otherwise."""
        return datetime(2026, 11, 21, tzinfo=timezone(self.offset)) + timedelta(
            seconds=self.seconds
        )

    def monotonic_s(self) -> float:
        """As far as the test has come."""
        return self.seconds

    def wait(self, timeout_s: float) -> Reason | None:
        """Let the time go on at once."""
        assert timeout_s > 0
        self.seconds += timeout_s
        return Reason.TERMINATED if len(self.looks) >= self.num_cycles else None

    def read(self) -> Reading:
        """Look, and let the look take its time."""
        self.looks.append(self.seconds - 100)
        self.seconds += self.look_s.pop(0) if self.look_s else 0
        return self.reading()

    def append(self, block: str) -> bool:
        """Keep the block, unless the disk is full."""
        self.num_lost += self.full
        if not self.full:
            self.blocks.append(block)
        return not self.full

    def record(self, interval_s: float = 10, host: object = None) -> str:
        """Record until the cycles are done; what the log holds."""
        facts = (("host", "n1"),)
        recorder = Recorder(self, host or Still(), self, PUMT, self, facts, self.said.append)
        assert recorder.run(self, interval_s) is Reason.TERMINATED
        return "".join(self.blocks)


class Still:
    """A host that never changes."""

    def read(self) -> HostSample:
        """Look once."""
        return HostSample(3, 1000)


def broken() -> Reading:
    """A look that fails."""
    raise RuntimeError("boom")


def test_the_first_look_is_at_once_and_a_last_one_at_the_end() -> None:
    """Three looks by deadline, and one more when it is told to stop."""
    world = World(num_cycles=3)
    world.record()
    assert world.looks == [0, 10, 20, 30]


def test_slow_looks_do_not_make_it_drift() -> None:
    """Each look takes 0.32 s, as 8 GPUs' PCIe counters do; the deadlines stay."""
    world = World(num_cycles=100, look_s=[0.32] * 100)
    world.record(interval_s=1)
    assert world.looks[:100] == pytest.approx(range(100))


def test_missed_deadlines_are_left_out() -> None:
    """After a look of 25 s at 10 s intervals the next one is at 30 s, not three at once."""
    world = World(num_cycles=3, look_s=[25])
    world.record()
    assert world.looks == pytest.approx([0, 30, 40, 50])


def test_the_head_tells_what_dmon_does_not() -> None:
    """Header first, then the facts, then rows; a fact that has not changed is told once."""
    world = World(num_cycles=2)
    lines = world.record().splitlines()
    assert lines[:2] == PUMT.header().splitlines()
    assert lines[2:4] == ["## host: n1", "## utc_offset: +02:00"]
    assert all(line.startswith(" 20261121    00:0") for line in lines[4:])
    assert len(lines) == 7


def test_a_changed_offset_is_told_where_it_changes() -> None:
    """When summer time ends, a new offset stands before the rows that it holds for."""
    world = World(num_cycles=2, offset=timedelta(hours=-2, minutes=-30))

    def reading() -> Reading:
        if len(world.looks) == 2:
            world.offset = timedelta(hours=1)
        return Reading()

    world.reading = reading
    lines = world.record().splitlines()
    assert [line for line in lines if "utc" in line] == [
        "## utc_offset: -02:30",
        "## utc_offset: +01:00",
    ]
    assert lines[-2] == "## utc_offset: +01:00"


def test_without_a_gpu_the_host_still_tells() -> None:
    """The row has `-` for the GPU's index and readings."""
    world = World(num_cycles=1, reading=Reading)
    assert "       -      -" in world.record().splitlines()[-1]


def test_nothing_a_source_raises_ends_it() -> None:
    """Trouble with GPUs or host is said once each, and rows go on without their readings."""

    class Broken:
        def read(self) -> HostSample:
            raise OSError("no /proc")

    world = World(num_cycles=3, reading=broken)
    lines = world.record(host=Broken()).splitlines()
    assert len([line for line in lines if line.startswith(" ")]) == 4
    assert [said.partition(":")[0] for said in world.said] == ["GPUs", "host"]


def test_nothing_the_log_raises_ends_it() -> None:
    """Even an error that nobody foresaw is said once and costs one sample."""
    world = World(num_cycles=3)
    facts = iter([True])

    def append(_block: str) -> bool:
        if next(facts, False):
            return True
        raise MemoryError("none left")

    world.append = append  # type: ignore[method-assign]
    world.record()
    assert len(world.looks) == 4
    assert len(world.said) == 1


def test_what_could_not_be_written_is_counted_in_the_log() -> None:
    """After a full disk the head is written first if it was lost, then how much is missing."""
    world = World(num_cycles=3, full=True)

    def reading() -> Reading:
        world.full = len(world.looks) < 3
        return Reading()

    world.reading = reading
    lines = world.record().splitlines()
    assert lines[:2] == PUMT.header().splitlines()
    assert "## lost: 3 samples could not be written" in lines
    assert len([line for line in lines if line.startswith(" ")]) == 2


class Gate:
    """A source that hangs until it is let through."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.num_looks = 0

    def read(self) -> Reading:
        """Look at once the first time; later wait at the gate."""
        self.num_looks += 1
        if self.num_looks > 1:
            self.open.wait(20)
        return Reading((GpuSample(index=0, power_w=self.num_looks),), (("driver", "1"),))


class Never:
    """It is never time to stop, unless told so."""

    reason: Reason | None = None

    def wait(self, _timeout_s: float) -> Reason | None:
        """Do not wait."""
        return self.reason


def test_a_look_that_hangs_leaves_cells_empty(until: Callable[..., None]) -> None:
    """GPUs known before keep their rows, no second look is begun, and later it goes on anew."""
    gate = Gate()
    source = BoundedSource(gate, 0.2, Never())
    assert source.read().gpus[0].power_w == 1
    for _ in range(3):
        assert source.read() == Reading((GpuSample(index=0),), (("driver", "1"),))
    assert gate.num_looks == 2
    gate.open.set()
    until(lambda: source.read().gpus[0].power_w == 3)


def test_the_end_does_not_wait_for_a_look_that_hangs() -> None:
    """Once it is time to stop a look gets its last bit of time, not the whole limit."""
    never, gate = Never(), Gate()
    source = BoundedSource(gate, 60, never, last_s=0.1)
    source.read()
    never.reason = Reason.TERMINATED
    assert source.read().gpus[0].power_w is None
    gate.open.set()


def test_a_look_that_never_came_back_is_told() -> None:
    """Where nothing is known of the GPUs yet, the log says why."""
    gate = Gate()
    gate.num_looks = 1
    reading = BoundedSource(gate, 0.1, Never()).read()
    assert reading.facts == (("gpus", "no readings: no answer within 0.1 s"),)
    gate.open.set()


def test_what_a_look_raises_comes_through() -> None:
    """The thread hands errors on and lives."""

    class Broken:
        def read(self) -> Reading:
            return broken()

    source = BoundedSource(Broken(), 5, Never())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="boom"):
            source.read()


def test_the_systems_clock_knows_its_offset() -> None:
    """Local time comes with its offset; the other clock never goes back."""
    clock = SystemClock()
    assert clock.now().utcoffset() is not None
    assert clock.monotonic_s() <= clock.monotonic_s()


def test_a_share_of_no_time_is_no_reading() -> None:
    """The first look has no CPU share yet; a second one 0.1 s later has one."""
    times = iter([0.0, 0.01, 5.0])
    host = Host(monotonic=lambda: next(times))
    first, second = host.read(), host.read()
    assert first.cpu_pct is None
    assert second.cpu_pct is not None
    assert 0 <= second.cpu_pct <= 100
    assert first.mem_used_mib is not None
    assert first.mem_used_mib < psutil.virtual_memory().total // 2**20


def test_a_host_without_proc_has_no_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where psutil cannot look, the readings are None."""

    def refuse(*_args: object, **_options: object) -> None:
        raise OSError("no /proc")

    monkeypatch.setattr(psutil, "cpu_percent", refuse)
    monkeypatch.setattr(psutil, "virtual_memory", refuse)
    times = iter([0.0, 5.0])
    assert Host(monotonic=lambda: next(times)).read() == HostSample()


def test_only_nvml_and_host_import_their_libraries() -> None:
    """pynvml and psutil each have one door."""
    root = Path(__file__).parents[2] / "monitor"
    for library, door in (("pynvml", "nvml.py"), ("psutil", "host.py")):
        importers = [p.name for p in root.glob("*.py") if f"import {library}" in p.read_text()]
        assert importers == [door]
