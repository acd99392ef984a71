"""The files in DDP_BEAT_DIR, read while others write them."""

import os
import time
from pathlib import Path

import pytest

from monitor.watchdog.heartbeats import read_children, read_heartbeats
from rundir.heartbeat import Child, Heartbeat, parse, parse_child
from trainer.telemetry.heartbeat import Phase, SharedHeartbeat


def test_what_the_trainer_writes_is_read(tmp_path: Path) -> None:
    """Writer and reader cite one table: every field arrives."""
    heartbeat = SharedHeartbeat(tmp_path / "rank-3")
    heartbeat.begin(16)
    heartbeat.step = 17
    heartbeat.compute_on("0A1B2C3D-0000-4000-8000-00000000000f")
    heartbeat.collective(int(Phase.AGREE))
    heartbeat.enter(int(Phase.FORWARD))
    (read,) = read_heartbeats(str(tmp_path)).values()
    assert (read.rank, read.pid, read.step, read.phase) == (3, os.getpid(), 17, "forward")
    assert (read.num_heartbeats, read.collective, read.first_step) == (3, 1, 16)
    assert read.gpu == "0a1b2c3d00004000800000000000000f"
    assert 0 <= time.monotonic() - read.time_ns / 1e9 < 5


@pytest.mark.parametrize(
    "data",
    [b"", b"DDPBEAT1", b"\0" * 80, b"DDPBEAT2" + b"\1" * 72, b"DDPBEAT1" + b"\0" * 72],
    ids=["empty", "short", "not yet begun", "another version", "no pid"],
)
def test_what_is_no_heartbeat_is_left_out(data: bytes, tmp_path: Path) -> None:
    """A file that is being made, or not ours, is no rank."""
    assert parse(0, data) is None
    (tmp_path / "rank-0").write_bytes(data)
    assert read_heartbeats(str(tmp_path)) == {}


@pytest.mark.parametrize("num_written", range(0, 48, 8))
def test_a_heartbeat_that_is_being_written_is_none(num_written: int) -> None:
    """Who packs into memory sets it to 0 first: half of it must not be taken for a heartbeat."""
    whole = b"DDPBEAT1" + b"".join(n.to_bytes(8, "little") for n in (7, 1, 2, 3, 3, 4, 1, 0, 0))
    assert parse(0, whole) is not None
    assert parse(0, whole[:num_written].ljust(80, b"\0")) is None


def test_an_unknown_phase_keeps_its_number() -> None:
    """A trainer of tomorrow may have more of them."""
    head = b"DDPBEAT1" + b"".join(n.to_bytes(8, "little") for n in (7, 1, 2, 99, 3, 4, 0, 0, 0))
    assert parse(5, head) == Heartbeat(5, 7, 1, 2, "phase 99", 3, 4)


def test_other_files_are_no_ranks(tmp_path: Path) -> None:
    """Pipes of torch and names that are no numbers lie there, too."""
    for name in ("rank-", "rank-x", "nccl-rank-0.pipe", "child-0.new"):
        (tmp_path / name).write_text("1 0 trainer\n")
    (tmp_path / "child-0").write_text("12 3 trainer\n")
    (tmp_path / "child-1").write_text("13 1 command\n")
    assert read_heartbeats(str(tmp_path)) == {}
    assert read_children(str(tmp_path)) == {
        0: Child(0, 12, 3, is_trainer=True),
        1: Child(1, 13, 1, is_trainer=False),
    }


@pytest.mark.parametrize("text", [b"", b"12", b"12 0", b"x 0 trainer", b"12 y command"])
def test_a_line_that_is_not_complete_is_no_child(text: bytes) -> None:
    """It is read again at the next poll."""
    assert parse_child(0, text) is None


def test_without_a_directory_there_are_no_ranks(tmp_path: Path) -> None:
    """The launcher has removed it, or never made it."""
    assert read_heartbeats(str(tmp_path / "gone")) == {}
    assert read_children(str(tmp_path / "gone")) == {}
