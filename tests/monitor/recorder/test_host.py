import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from monitor.recorder import host as host_module
from monitor.recorder.host import Fabric, Host, room


class Clock:
    """Seconds that go on as the test says."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still."""
    return Clock()


def port(root: Path, name: str, received: object, sent: object) -> None:
    """Let a port have counted so many words."""
    counters = root / name / "counters"
    counters.mkdir(parents=True, exist_ok=True)
    for file, count in (("port_rcv_data", received), ("port_xmit_data", sent)):
        (counters / file).write_text(f"{count}\n")


def test_words_of_four_bytes_become_mb_s(tmp_path: Path, clock: Clock) -> None:
    """Summed over all ports, over the time between two polls; the first poll has none."""
    port(tmp_path, "mlx5_0/ports/1", 1000, 0)
    port(tmp_path, "mlx5_1/ports/1", 50_000_000, 7)
    fabric = Fabric(str(tmp_path), clock)
    assert fabric.has_ports
    assert fabric.read() == (None, None)
    port(tmp_path, "mlx5_0/ports/1", 1000 + 25_000_000, 0)
    port(tmp_path, "mlx5_1/ports/1", 75_000_000, 7 + 2_500_000)
    clock.now_s += 2
    assert fabric.read() == (100, 5)


def test_a_counter_that_begins_anew_does_not_count(tmp_path: Path, clock: Clock) -> None:
    """Nor one that is full, cannot be read, or is no number; the other ports do."""
    names = [f"mlx5_{i}/ports/1" for i in range(4)]
    for name in names:
        port(tmp_path, name, 10_000_000, 10_000_000)
    fabric = Fabric(str(tmp_path), clock)
    fabric.read()
    for name, count in zip(names, (20_000_000, 5, 2**32 - 1, "broken"), strict=True):
        port(tmp_path, name, count, "")
    clock.now_s += 1
    assert fabric.read() == (40, None)


def test_two_polls_at_one_moment_have_no_rate(tmp_path: Path, clock: Clock) -> None:
    """There is no time to divide by."""
    port(tmp_path, "mlx5_0/ports/1", 1, 1)
    fabric = Fabric(str(tmp_path), clock)
    assert fabric.read() == fabric.read() == (None, None)


def test_a_node_without_infiniband(tmp_path: Path) -> None:
    """It has no readings, and costs no thread."""
    fabric = Fabric(str(tmp_path / "none"))
    assert not fabric.has_ports
    assert fabric.read() == (None, None)


STAT = "cpu  {user} 0 0 {idle} {iowait} 0 0 0 {guest} 0\ncpu0 1 2 3\n"
MEMINFO = "MemTotal:       2048000 kB\nMemFree:  1 kB\nMemAvailable:   1024000 kB\nBuffers: 1 kB\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A machine's /proc."""
    place = tmp_path / "proc"
    place.mkdir()
    (place / "stat").write_text(STAT.format(user=100, idle=100, iowait=0, guest=50))
    (place / "meminfo").write_text(MEMINFO)
    return place


def test_cpu_and_memory(proc: Path, clock: Clock) -> None:
    """Busy is what neither idles nor waits for a disk; guests are in it once."""
    host = Host("h", proc=str(proc), monotonic=clock)
    (proc / "stat").write_text(STAT.format(user=130, idle=150, iowait=20, guest=80))
    clock.now_s += 1
    sample = host.read()
    assert (sample.cpu_pct, sample.mem_used_mib) == (30, 1000)
    assert (sample.shm_pct, sample.disk_pct, sample.mono_s, sample.ib_rx_mb_s) == (None,) * 4


def test_it_agrees_with_psutil() -> None:
    """On this very machine, as far as two looks at different moments can."""
    sample = Host("hk").read()
    assert sample.mem_used_mib is not None
    memory = psutil.virtual_memory()
    assert sample.mem_used_mib == pytest.approx((memory.total - memory.available) / 2**20, rel=0.2)
    assert sample.mono_s is not None


def test_a_share_of_no_time_is_no_reading(proc: Path, clock: Clock) -> None:
    """Less than 0.1 s after the last poll there are too few ticks to tell."""
    host = Host("h", proc=str(proc), monotonic=clock)
    clock.now_s += 0.05
    assert host.read().cpu_pct is None
    clock.now_s += 1
    assert host.read().cpu_pct is None  # not one tick has passed here


@pytest.mark.parametrize("text", ["", "cpu\n", "cpu x y\n", "cpu 1 2 3\n"])
def test_a_host_that_does_not_tell(proc: Path, clock: Clock, text: str) -> None:
    """Whatever /proc holds, the readings are None."""
    host = Host("h", proc=str(proc), monotonic=clock)
    for name in ("stat", "meminfo"):
        (proc / name).write_text(text)
    clock.now_s += 1
    sample = host.read()
    assert (sample.cpu_pct, sample.mem_used_mib) == (None, None)
    nothing = Host("h", proc=str(proc / "none"), monotonic=clock)
    clock.now_s += 1
    assert nothing.read().cpu_pct is None


def test_disk_and_shared_memory(tmp_path: Path, clock: Clock, monkeypatch: Any) -> None:
    """Of the folder's disk, asked again after 10 s and not before."""
    asked: list[str] = []

    def statvfs(path: str) -> os.statvfs_result:
        asked.append(path)
        if path == "/none":
            raise OSError("gone")
        return os.statvfs_result((1, 2**22, 1000, 300, 100, 0, 0, 0, 0, 255))

    monkeypatch.setattr(os, "statvfs", statvfs)
    host = Host("d", str(tmp_path), monotonic=clock)
    samples = []
    for _ in range(3):
        samples.append(host.read())
        clock.now_s += 6
    assert {(s.disk_pct, s.shm_pct, s.disk_free_mib) for s in samples} == {(88, 88, 400)}
    assert asked.count(str(tmp_path)) == 2
    assert room("/none") == (None, None)


def test_a_disk_that_hangs_delays_nothing(
    tmp_path: Path, clock: Clock, monkeypatch: Any, until: Callable[..., None]
) -> None:
    """Its cell is empty until it answers, and it is not asked meanwhile."""
    gate, asked = threading.Event(), []

    def hang(path: str) -> tuple[int, int]:
        if path == "/dev/shm":
            return 1, 1
        asked.append(path)
        gate.wait(20)
        return 42, 7

    monkeypatch.setattr(host_module, "room", hang)
    monkeypatch.setattr(host_module, "_SLOW_S", 0.05)
    host = Host("d", str(tmp_path), monotonic=clock)
    assert [host.read().disk_pct for _ in range(3)] == [None] * 3
    assert len(asked) == 1
    gate.set()
    until(lambda: host.read().disk_pct == 42)


def test_infiniband_beside_the_rest(tmp_path: Path, clock: Clock) -> None:
    """The rates of the node's ports are in its samples."""
    port(tmp_path, "mlx5_0/ports/1", 0, 0)
    host = Host("i", fabric=lambda: Fabric(str(tmp_path), clock), monotonic=clock)
    assert host.read().ib_rx_mb_s is None
    port(tmp_path, "mlx5_0/ports/1", 1_000_000, 250_000)
    clock.now_s += 1
    sample = host.read()
    assert (sample.ib_rx_mb_s, sample.ib_tx_mb_s) == (4, 1)
