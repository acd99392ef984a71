"""Stacks of real processes that hang in real ways."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monitor.watchdog import stacks
from monitor.watchdog.stacks import (
    Frame,
    StackTaker,
    Target,
    ask_for_trace,
    describe,
    parse_faulthandler,
    parse_py_spy,
)
from rundir import procfs
from rundir.paths import RunDir
from tests import uncovered
from tests.monitor import ranks

RANKS = Path(__file__).parents[1] / "ranks.py"
Start = Callable[..., "subprocess.Popen[str]"]
Until = Callable[..., None]

FAULTHANDLER = """\
Thread 0x00007f2 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait

Current thread 0x00007f1 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 9 in barrier
  File "/home/me/a b/train.py", line 12 in <lambda>
  File "/home/me/a b/train.py", line 20 in <module>
"""

PY_SPY = """\
Process 77: python train.py
Python v3.11.2 (/usr/bin/python3.11)

Thread 80 (idle): "loader"
    wait (threading.py:324)
Thread 77 (active+gil): "MainThread"
    <lambda> (/home/me/a (b)/train.py:12)
    <module> (train.py:20)
"""


def test_the_main_thread_of_a_faulthandler_dump() -> None:
    """It stands last; the newest dump counts if there are several."""
    frames = parse_faulthandler(FAULTHANDLER)
    assert [frame.function for frame in frames] == ["barrier", "<lambda>", "<module>"]
    assert frames[1] == Frame("/home/me/a b/train.py", 12, "<lambda>")
    assert parse_faulthandler("") == []
    assert parse_faulthandler('  File "x", line 1 in f\n') == []


def test_the_main_thread_of_py_spy() -> None:
    """By its name, wherever it stands."""
    assert parse_py_spy(PY_SPY) == [
        Frame("/home/me/a (b)/train.py", 12, "<lambda>"),
        Frame("train.py", 20, "<module>"),
    ]
    assert parse_py_spy("Error: no permission\n") == []


def test_the_top_names_the_users_line_too() -> None:
    """A line in a library says little without the one that called it."""
    stack = describe(parse_faulthandler(FAULTHANDLER), "f")
    assert stack.top == (
        "torch/distributed/distributed_c10d.py:9 in barrier, called from me/a b/train.py:12 in"
        " <lambda>"
    )
    assert stack.is_waiting
    own = describe([Frame("/home/me/train.py", 3, "f")], "f")
    assert (own.top, own.is_waiting) == ("home/me/train.py:3 in f", False)
    assert describe([], "f").top is None


def test_a_hook_inside_of_backward_does_not_wait() -> None:
    """Only what the innermost frames wait in counts."""
    graph = Frame("/x/site-packages/torch/autograd/graph.py", 5, "_engine_run_backward")
    assert describe([graph], "f").is_waiting
    assert not describe([Frame("/me/hook.py", 1, "h"), graph], "f").is_waiting
    op = Frame("/x/site-packages/torch/_ops.py", 1, "__call__")
    collective = Frame("/x/site-packages/torch/distributed/_functional.py", 1, "wait_tensor")
    assert describe([op, collective], "f").is_waiting


def hangs(directory: Path, rank: int, pid: int, mode: str) -> bool:
    """Whether the rank has taken its last step, and sleeps, is stopped or, in a regex, spins."""
    step = ranks.BEAT.unpack((directory / f"rank-{rank}").read_bytes())[2]
    return step == ranks.LAST_STEP and procfs.state(pid) in (
        {"R"} if mode == "regex" else {"S", "T"}
    )


@pytest.fixture
def start(tmp_path: Path, until: Until) -> Iterator[Start]:
    """Start a rank that hangs as requested, and wait until it does."""
    (tmp_path / "debug").mkdir()
    (tmp_path / "hang").touch()
    started = []

    def begin(mode: str, rank: int = 0) -> "subprocess.Popen[str]":
        command = [sys.executable, str(RANKS), mode, str(tmp_path), str(rank), str(tmp_path)]
        env = uncovered.environment()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        until(lambda: hangs(tmp_path, rank, process.pid, mode))
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def taker(tmp_path: Path) -> StackTaker:
    """Takes stacks without py-spy."""
    return StackTaker(RunDir(str(tmp_path)), 1, _spy=None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "function"),
    [("sleep", "hang_in_sleep"), ("c", "hang_in_c"), ("regex", "hang_in_regex")],
)
def test_a_trainer_tells_its_line_whatever_it_hangs_in(
    start: Start, taker: StackTaker, mode: str, function: str
) -> None:
    """Asleep, in C with the GIL held, in a loop in C with the GIL held."""
    rank = start(mode)
    taken = taker.take([Target(0, rank.pid, answers=True)])
    assert function in str(taken[0].top)
    assert taken[0].path == taker.files.stack(1, 0)
    assert function in Path(taken[0].path).read_text()
    assert rank.poll() is None
    again = taker.take([Target(0, rank.pid, answers=True)])
    assert function in str(again[0].top)


@pytest.mark.slow
def test_a_process_without_a_handler_is_not_signalled(start: Start, taker: StackTaker) -> None:
    """SIGUSR2 would end it."""
    rank = start("deaf")
    taken = taker.take([Target(0, rank.pid, answers=True)])
    assert rank.poll() is None
    assert "nanosleep" in str(taken[0].top)
    text = Path(taken[0].path or "").read_text()
    assert "ranks.py deaf" in text
    assert "wchan" in text


@pytest.mark.slow
def test_a_stopped_process_is_not_signalled(start: Start, taker: StackTaker) -> None:
    """It would answer when it goes on, much later; /proc tells that it is stopped."""
    rank = start("stop")
    taken = taker.take([Target(0, rank.pid, answers=True)])
    assert taken[0].top is None
    assert "T (stopped)" in Path(taken[0].path or "").read_text()
    rank.send_signal(signal.SIGCONT)
    time.sleep(0.3)
    assert (Path(taker.files.stack(1, 0))).read_text() == ""


@pytest.mark.slow
def test_py_spy_is_asked_where_it_is_installed(
    start: Start, tmp_path: Path, taker: StackTaker
) -> None:
    """Of a command's Python processes, without stopping them; its words are kept."""
    spy = tmp_path / "py-spy"
    spy.write_text(f"#!/bin/sh\necho \"$@\" >>{tmp_path}/calls\ncat <<'END'\n{PY_SPY}END\n")
    spy.chmod(0o755)
    taker._spy = str(spy)  # noqa: SLF001 - as if it were on PATH
    rank = start("deaf")
    shell = subprocess.Popen(["sleep", "60"])
    taken = taker.take([Target(0, rank.pid, pids=(shell.pid, rank.pid))])
    shell.kill()
    shell.wait()
    assert taken[0].top == "me/a (b)/train.py:12 in <lambda>"
    assert (tmp_path / "calls").read_text() == (
        f"dump --full-filenames --nonblocking --pid {rank.pid}\n"
    )
    assert "active+gil" in Path(taken[0].path or "").read_text()


@pytest.mark.slow
def test_no_secret_of_a_command_line_is_in_the_file(
    start: Start, tmp_path: Path, taker: StackTaker
) -> None:
    """People send it to others; py-spy shows the command line, too."""
    spy = tmp_path / "py-spy"
    shown = PY_SPY.replace("train.py", "-c import x\ny --token SECRET", 1)
    spy.write_text(f"#!/bin/sh\ncat <<'END'\n{shown}END\n")
    spy.chmod(0o755)
    taker._spy = str(spy)  # noqa: SLF001 - as if it were on PATH
    rank = start("deaf")
    command = ["bash", "-c", "read -r", "--token", "SECRET", "--lr=0.1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as shell:
        taken = taker.take([Target(0, rank.pid, pids=(shell.pid, rank.pid))])
        shell.kill()
    text = Path(taken[0].path or "").read_text()
    assert f"process {shell.pid}: bash -c read -r --token *** --lr=0.1\n" in text
    assert "SECRET" not in text


@pytest.mark.slow
def test_a_py_spy_without_permission_costs_nothing(start: Start, taker: StackTaker) -> None:
    """Then /proc tells what it can."""
    taker._spy = "false"  # noqa: SLF001
    rank = start("deaf")
    assert "nanosleep" in str(taker.take([Target(0, rank.pid)])[0].top)


def test_a_directory_that_cannot_be_written_costs_the_file_only(
    until: Until, tmp_path: Path
) -> None:
    """Nor through a link, which may be another user's; the kernel's function is reported."""
    sleeper = subprocess.Popen(["sleep", "60"])
    until(lambda: "nanosleep" in Path(f"/proc/{sleeper.pid}/wchan").read_text())
    (tmp_path / "mine").write_text("kept")
    (tmp_path / "debug").mkdir()
    (tmp_path / "debug/proc-1-rank-0.txt").symlink_to("../mine")
    for directory in ("/nowhere", str(tmp_path)):
        taken = StackTaker(RunDir(directory), 1, _spy=None).take([Target(0, sleeper.pid)])
        assert "nanosleep" in str(taken[0].top)
        assert taken[0].path is None
    sleeper.kill()
    sleeper.wait()
    assert (tmp_path / "mine").read_text() == "kept"


def test_a_process_that_is_gone_has_no_stack(taker: StackTaker) -> None:
    """Between the poll and the question it may end."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    taken = taker.take([Target(0, gone.pid, answers=True)])
    assert taken[0].top is None


def test_the_flight_recorder_is_asked_through_its_pipe(tmp_path: Path) -> None:
    """Whatever is written there makes torch dump; a pipe without a reader is left alone."""
    for rank in (0, 1):
        os.mkfifo(tmp_path / f"nccl-rank-{rank}.pipe")
    reader = os.open(tmp_path / "nccl-rank-0.pipe", os.O_RDONLY | os.O_NONBLOCK)
    done = threading.Event()
    asked = ask_for_trace(f"{tmp_path}/nccl-rank-", [0, 1, 2])
    done.set()
    assert asked == [0]
    assert os.read(reader, 16) == b"1"
    os.close(reader)


def test_dumps_are_named(tmp_path: Path) -> None:
    """Those of torch alone."""
    (tmp_path / "debug").mkdir()
    for name in ("nccl-trace-rank-1", "nccl-trace-rank-0", "stack-1-rank-0.txt"):
        (tmp_path / "debug" / name).touch()
    assert StackTaker(RunDir(str(tmp_path)), 1).traces() == [
        f"{tmp_path}/debug/nccl-trace-rank-0",
        f"{tmp_path}/debug/nccl-trace-rank-1",
    ]
    assert StackTaker(RunDir("/nowhere"), 1).traces() == []


def test_a_line_of_ours_is_named_from_the_projects_root() -> None:
    """Of another file the last three parts tell it apart."""
    root = Path(stacks.__file__).parents[2]
    assert str(Frame(f"{root}/trainer/passes.py", 60, "take")) == "trainer/passes.py:60 in take"
    assert str(Frame("/a/b/c/d.py", 1, "f")) == "b/c/d.py:1 in f"
