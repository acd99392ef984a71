import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from monitor.logs import gutil
from monitor.logs.log_events import LogEvent
from monitor.logs.sample import GpuSample, HostSample, RankSample, Reading
from monitor.recorder.loop import Recorder, SystemClock
from monitor.recorder.sink import Sink
from monitor.stop import Reason

PUMT = gutil.Layout("pumt")


def still() -> HostSample:
    """A host that never changes."""
    return HostSample(3, 1000)


@dataclass
class World:
    """Clock, stop, GPUs, host and log at once: time goes on only as the test wants."""

    num_cycles: int
    poll_s: list[float] = field(default_factory=list)
    reading: Callable[[], Reading] = lambda: Reading((GpuSample(index=0),))
    offset: timedelta = timedelta(hours=2)
    seconds: float = 100.0
    polled_s: list[float] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    full: bool = False
    turns: tuple[int, ...] = ()
    """After which looks there is a new file."""
    report: Callable[[LogEvent], None] = lambda _mark: None

    def now(self) -> datetime:
        """Two hours east of UTC, unless a test changes it."""
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
        return Reason.TERMINATED if len(self.polled_s) >= self.num_cycles else None

    def read(self) -> Reading:
        """Poll, and let the poll take its time."""
        self.polled_s.append(self.seconds - 100)
        self.seconds += self.poll_s.pop(0) if self.poll_s else 0
        return self.reading()

    def append(self, block: str) -> bool:
        """Keep the block, unless the disk is full."""
        if not self.full:
            self.blocks.append(block)
        return not self.full

    def turn(self) -> bool:
        """Change the file where the test says so."""
        return len(self.polled_s) in self.turns

    def record(self, interval_s: float = 10, host: Callable[[], HostSample] = still) -> str:
        """Record until the cycles are done; what the log holds."""
        facts = (("host", "n1"),)
        recorder = Recorder(self.read, host, self, PUMT, self, facts, self.messages.append)
        self.report = recorder.report
        assert recorder.run(self, interval_s) is Reason.TERMINATED
        return "".join(self.blocks)


def broken() -> Reading:
    """A look that fails."""
    raise RuntimeError("boom")


def test_the_first_poll_is_at_once_and_a_last_one_at_the_end() -> None:
    """Three polls by deadline, and one more when it is asked to stop."""
    world = World(num_cycles=3)
    world.record()
    assert world.polled_s == [0, 10, 20, 30]


def test_slow_polls_do_not_make_it_drift() -> None:
    """Each look takes 0.32 s, as 8 GPUs' PCIe counters do; the deadlines stay."""
    world = World(num_cycles=100, poll_s=[0.32] * 100)
    world.record(interval_s=1)
    assert world.polled_s[:100] == pytest.approx(range(100))


def test_missed_deadlines_are_left_out() -> None:
    """After a look of 25 s at 10 s intervals the next one is at 30 s, not three at once."""
    world = World(num_cycles=3, poll_s=[25])
    world.record()
    assert world.polled_s == pytest.approx([0, 30, 40, 50])


def test_the_head_tells_what_dmon_does_not() -> None:
    """Header first, then the facts, then rows; a fact that has not changed is reported once."""
    world = World(num_cycles=2)
    lines = world.record().splitlines()
    assert lines[:2] == PUMT.header().splitlines()
    assert lines[2:4] == ["## host: n1", "## utc_offset: +02:00"]
    assert all(line.startswith(" 20261121    00:0") for line in lines[4:])
    assert len(lines) == 7


def test_a_changed_offset_is_reported_where_it_changes() -> None:
    """When summer time ends, a new offset stands before the rows that it holds for."""
    world = World(num_cycles=2, offset=timedelta(hours=-2, minutes=-30))

    def reading() -> Reading:
        if len(world.polled_s) == 2:
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
    """Trouble with GPUs or host is reported once each, and rows go on without their readings."""

    def no_proc() -> HostSample:
        raise OSError("no /proc")

    world = World(num_cycles=3, reading=broken)
    lines = world.record(host=no_proc).splitlines()
    assert len([line for line in lines if line.startswith(" ")]) == 4
    assert [output.partition(":")[0] for output in world.messages] == ["GPUs", "host"]


def test_nothing_the_log_raises_ends_it() -> None:
    """Even an unforeseen error is reported once and costs one sample."""
    world = World(num_cycles=3)
    facts = iter([True])

    def append(_block: str) -> bool:
        if next(facts, False):
            return True
        raise MemoryError("none left")

    world.append = append  # type: ignore[method-assign]
    world.record()
    assert len(world.polled_s) == 4
    assert len(world.messages) == 1


def test_what_could_not_be_written_is_counted_in_the_log() -> None:
    """After a full disk the head is written first if it was lost, then how much is missing."""
    world = World(num_cycles=3, full=True)

    def reading() -> Reading:
        world.full = len(world.polled_s) < 3
        return Reading()

    world.reading = reading
    lines = world.record().splitlines()
    assert lines[:2] == PUMT.header().splitlines()
    assert "## lost: 2 samples could not be written" in lines
    assert len([line for line in lines if line.startswith(" ")]) == 2


def test_what_is_lost_is_counted_once() -> None:
    """Each line counts what was lost since the one before; a new file begins with none."""
    world = World(num_cycles=8, turns=(7,))

    def reading() -> Reading:
        world.full = len(world.polled_s) in (2, 4, 5)
        return Reading()

    world.reading = reading
    lost = [line for line in world.record().splitlines() if line.startswith("## lost")]
    assert lost == [
        "## lost: 1 sample could not be written",
        "## lost: 2 samples could not be written",
    ]


def test_the_systems_clock_knows_its_offset() -> None:
    """Local time comes with its offset; the other clock never goes back."""
    clock = SystemClock()
    assert clock.now().utcoffset() is not None
    assert clock.monotonic_s() <= clock.monotonic_s()


def test_a_new_file_begins_with_all_that_is_known() -> None:
    """After a rotation header and facts come again, and the 44 rows are counted anew."""
    world = World(num_cycles=3, turns=(2,))
    world.record()
    assert world.blocks[2].startswith(PUMT.header() + "## host: n1\n## utc_offset: +02:00\n")
    assert not world.blocks[3].startswith("#")


def test_a_log_that_rotates_loses_no_row_and_doubles_none(tmp_path: Path) -> None:
    """Each look is in one of the files, whole and in order, and each file begins with its head."""
    num_polls = 400
    world = World(num_cycles=num_polls)
    world.reading = lambda: Reading((GpuSample(0, len(world.polled_s)), GpuSample(1, 0)))
    path = tmp_path / "log"
    sink = Sink(str(path), world.messages.append, max_bytes=12000, num_kept=1000)
    facts, emit = (("host", "n1"),), world.messages.append
    recorder = Recorder(world.read, still, sink, PUMT, world, facts, emit)
    recorder.run(world, 10)
    moved = sorted(tmp_path.glob("log.*"), key=lambda file: -int(file.suffix[1:]))
    assert len(moved) > 5
    powers = []
    for file in (*moved, path):
        text = file.read_text()
        assert text.startswith(PUMT.header() + "## host: n1\n## utc_offset: +02:00\n")
        rows = [line.split() for line in text.splitlines() if line.startswith(" ")]
        assert [row[2] for row in rows] == ["0", "1"] * (len(rows) // 2)
        assert text.count("#Date") == (len(rows) + 43) // 44
        powers += [int(row[3]) for row in rows[::2]]
    assert powers == list(range(1, num_polls + 2))
    assert all(12000 <= file.stat().st_size < 12600 for file in moved)
    assert world.messages == []


XID = LogEvent(1795258800.0, "xid", 3, {"xid": "79"})


def test_what_happens_is_written_at_once() -> None:
    """Between two samples, before the next one."""
    world = World(num_cycles=2)

    def reading() -> Reading:
        if len(world.polled_s) == 2:
            world.report(XID)
        return Reading()

    world.reading = reading
    lines = world.record().splitlines()
    assert lines[-3].endswith("xid gpu=3 xid=79")
    assert lines[-3].startswith("## event: 2026-11-21T")


def test_what_happens_while_the_disk_is_full_is_reported_later() -> None:
    """With the first sample that there is room for; and not before the header."""
    world = World(num_cycles=3, full=True)

    def reading() -> Reading:
        if len(world.polled_s) == 1:
            world.report(XID)
        world.full = len(world.polled_s) < 3
        return Reading()

    world.reading = reading
    lines = world.record().splitlines()
    assert lines[0].startswith("#Date")
    assert [line.split()[3:] for line in lines if line.startswith("## event")] == [
        ["xid", "gpu=3", "xid=79"]
    ]


def test_nothing_the_ranks_raise_ends_it() -> None:
    """It is reported once, and the rows go on without step and rank."""

    def no_heartbeats(_reading: Reading) -> list[RankSample]:
        raise OSError("no heartbeats")

    world = World(num_cycles=2)
    emit = world.messages.append
    recorder = Recorder(world.read, still, world, PUMT, world, (), emit, no_heartbeats)
    recorder.run(world, 10)
    assert "".join(world.blocks).count("\n ") == 3
    assert len(world.messages) == 1


def test_only_the_files_of_nvml_open_nvml() -> None:
    """Nothing else imports pynvml, and nothing at all psutil."""
    root = Path(__file__).parents[3] / "monitor"
    texts = {path: path.read_text() for path in root.rglob("*.py")}
    importers = [path for path, text in texts.items() if re.search(r"(import|from) pynvml", text)]
    assert importers
    assert {path.parent.name for path in importers} == {"nvml"}
    assert not any("import psutil" in text for text in texts.values())
