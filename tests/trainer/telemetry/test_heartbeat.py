import mmap
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainer.telemetry.heartbeat import (
    AGREE,
    BACKWARD,
    END,
    FORWARD,
    SAVE,
    Heartbeat,
    SharedHeartbeat,
    Stacks,
    open_heartbeat,
)


def read(path: Path) -> dict[str, Any]:
    """The heartbeat as a watcher reads it, by the format alone."""
    names = ("magic", "pid", "step", "time_ns", "phase", "count", "meetings", "first", "gpu")
    return dict(zip(names, struct.unpack("<8s7q16s", path.read_bytes()), strict=True))


def test_a_heartbeat_says_where_its_rank_is(tmp_path: Path) -> None:
    """Step, phase, a rising count and the time of the clock that all processes share."""
    before_ns = time.monotonic_ns()
    heartbeat = open_heartbeat(tmp_path, 3)
    assert read(tmp_path / "rank-3") | {"time_ns": 0} == {
        "magic": b"DDPBEAT1", "pid": os.getpid(), "step": 0, "time_ns": 0, "phase": 0,
        "count": 1, "meetings": 0, "first": 0, "gpu": bytes(16),
    }  # fmt: skip
    heartbeat.begin(6)
    heartbeat.enter(FORWARD)
    heartbeat.collective(BACKWARD)
    heartbeat.step = 7
    heartbeat.collective(SAVE)
    reported = read(tmp_path / "rank-3")
    assert (reported["step"], reported["phase"], reported["count"], reported["meetings"]) == (
        7,
        SAVE,
        4,
        2,
    )
    assert reported["first"] == 6 + 1
    heartbeat.compute_on("0a1b2c3d-0000-4000-8000-00000000000f")
    assert read(tmp_path / "rank-3")["gpu"].hex() == "0a1b2c3d00004000800000000000000f"
    heartbeat.compute_on("")
    assert not any(read(tmp_path / "rank-3")["gpu"])
    assert before_ns <= reported["time_ns"] <= time.monotonic_ns()


def test_no_reader_sees_half_a_number(tmp_path: Path) -> None:
    """Read as fast as can be while another process writes: never a number that it did not store."""
    path = tmp_path / "rank-0"
    beating = (
        "import sys; from pathlib import Path\n"
        "from trainer.telemetry.heartbeat import FORWARD, SharedHeartbeat\n"
        "heartbeat = SharedHeartbeat(Path(sys.argv[1]))\n"
        "while True: heartbeat.begin(6); heartbeat.collective(FORWARD)"
    )
    began_ns = time.monotonic_ns()
    with subprocess.Popen([sys.executable, "-c", beating, path]) as process:
        try:
            deadline_s = time.monotonic() + 30
            while not path.exists() or read(path)["count"] < 9:
                assert time.monotonic() < deadline_s
            with path.open("rb") as file:
                memory = mmap.mmap(file.fileno(), 80, prot=mmap.PROT_READ)
            for _ in range(100_000):
                reported = struct.unpack("<8s7q16x", memory[:])
                assert 0 not in reported
                assert (reported[2], reported[4], reported[7]) == (6, FORWARD, 7)
                assert began_ns < reported[3] <= time.monotonic_ns()
        finally:
            process.kill()


def test_a_second_start_begins_anew(tmp_path: Path) -> None:
    """What an earlier process left in the file is gone."""
    first = SharedHeartbeat(tmp_path / "rank-0")
    first.step = 99
    first.collective(END)
    SharedHeartbeat(tmp_path / "rank-0")
    reported = read(tmp_path / "rank-0")
    assert (reported["step"], reported["phase"], reported["count"]) == (0, 0, 1)


def test_without_a_folder_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No variable, no heartbeat; a folder that is not there is a warning, never the run's end."""
    assert type(open_heartbeat(None, 0)) is Heartbeat
    heartbeat = open_heartbeat(tmp_path / "nonesuch", 0)
    assert type(heartbeat) is Heartbeat
    heartbeat.enter(FORWARD)
    heartbeat.collective(AGREE)
    assert "no heartbeat" in capsys.readouterr().err


@pytest.mark.slow
def test_ranks_write_heartbeats_alike_and_show_their_stacks(
    start_ranks: Callable[..., Any], tmp_path: Path
) -> None:
    """Both move on; a signal writes each one's stacks and disturbs nothing; empty files go."""
    (tmp_path / "run").mkdir()
    (tmp_path / "beats").mkdir()
    env = {"DDP_BEAT_DIR": str(tmp_path / "beats"), "DDP_RUN_DIR": str(tmp_path / "run")}
    options = ("--model", "mlp", "--log-every", "1", "--epochs", "100000", "--val-every", "1000000")
    started = start_ranks(2, *options, env=env)
    started.wait_for_step(10)
    heartbeats = [read(tmp_path / "beats" / f"rank-{rank}") for rank in (0, 1)]
    assert [heartbeat["pid"] for heartbeat in heartbeats] == [
        process.pid for process in started.processes
    ]
    assert min(heartbeat["step"] for heartbeat in heartbeats) >= 9
    assert all(
        heartbeat["meetings"] > 2 * 9 for heartbeat in heartbeats
    )  # a reduction and a log line each step
    started.processes[1].send_signal(signal.SIGUSR2)
    file = tmp_path / "run" / "debug" / "stack-1-rank-1.txt"
    deadline_s = time.monotonic() + 10
    while "loop.py" not in file.read_text():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    started.processes[1].send_signal(signal.SIGTERM)
    assert started.wait() == [75, 75]
    ends = [read(tmp_path / "beats" / f"rank-{rank}") for rank in (0, 1)]
    assert [end["phase"] for end in ends] == [END, END]
    assert ends[0]["meetings"] == ends[1]["meetings"]
    assert ends[0]["step"] == ends[1]["step"] == started.run.summary()["steps"]
    assert [entry.name for entry in file.parent.iterdir()] == ["stack-1-rank-1.txt"]


def test_by_hand_stacks_go_to_standard_error() -> None:
    """A run whose user wants to know where it is does not end by the signal."""
    code = (
        "import os, signal; from trainer.telemetry.heartbeat import Stacks\n"
        "def where(): os.kill(os.getpid(), signal.SIGUSR2)\n"
        "Stacks(None, 1, 0); where(); print('goes on')"
    )
    # Not in this process: with a hundred threads of other tests, the main one's is not written.
    words = [sys.executable, "-c", code]
    done = subprocess.run(
        words, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True
    )
    assert "in where" in done.stderr
    assert done.stdout == "goes on\n"


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("mine"), os.mkfifo])
def test_stacks_are_written_through_no_link(
    make: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where others may write, it may lead to a file of this user's; a pipe would never be open."""
    (tmp_path / "debug").mkdir()
    make(tmp_path / "debug" / "stack-1-rank-0.txt")
    Stacks(tmp_path, 1, 0)
    assert "no stacks on SIGUSR2" in capsys.readouterr().err
    assert not (tmp_path / "debug" / "mine").exists()
