"""A rank's command and the signals on their way to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from jobs import processes
from jobs.agent import task
from jobs.agent.child import Streams
from jobs.agent.task import Task, has_failed
from jobs.loop import Loop
from jobs.messages import UsageError
from rundir import procfs
from rundir.paths import RunDir
from tests.conftest import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FAILED = {"event": "rank_end", "attempt": 2, "rank": 1, "code": 1, "requested": False}


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """Leave this process as it was."""
    caught = task.child.CAUGHT
    before = {signum: signal.getsignal(signum) for signum in caught}
    yield
    signal.set_wakeup_fd(-1)
    for signum, handler in before.items():
        signal.signal(signum, handler)


def begin(tmp_path: Path, script: str, **environ: str) -> Task:
    """Start a shell as a rank's command, and wait until it is ready."""
    env = {"PATH": os.environ["PATH"], "DDP_LAUNCH_ID": str(tmp_path), "DDP_ATTEMPT": "2"}
    env |= {"DDP_RUN_DIR": str(tmp_path)} | environ
    one = Task(env, "0", str(tmp_path / "log"), Loop())
    one.start(["bash", "-c", script], Streams(one.log_fd, one.log_fd), signal.SIGKILL)
    Cluster.until(lambda: "ready" in (tmp_path / "log").read_text(), 10, "it is ready")
    return one


def tell(signum: int) -> None:
    """Signal this process, the agent."""
    os.kill(os.getpid(), signum)


@pytest.mark.parametrize("is_read", [False, True])
def test_a_pipe_in_the_logs_place(tmp_path: Path, *, is_read: bool) -> None:
    """It is refused at once: nobody may read it, or for ever."""
    log = tmp_path / "log"
    os.mkfifo(log)
    reader = os.open(log, os.O_RDONLY | os.O_NONBLOCK) if is_read else None
    found = "a pipe or a device" if is_read else "No such device or address"
    with pytest.raises(UsageError, match=f"log must be writable; found {found} at {log}; make"):
        Task({"DDP_LAUNCH_ID": "x"}, "0", str(log), Loop())
    if reader is not None:
        os.close(reader)


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_whatever_asks_for_the_end_is_a_sigterm(tmp_path: Path, signum: int) -> None:
    """And an end on request."""
    one = begin(tmp_path, "trap 'exit 75' TERM; echo ready; while :; do sleep 0.05; done")
    tell(signum)
    assert one.wait() == 75
    assert one.is_requested
    assert one.is_ending


@pytest.mark.parametrize(("signum", "is_requested"), [(15, True), (2, True), (9, False)])
def test_a_signal_to_the_whole_group_is_a_request(
    tmp_path: Path, signum: int, *, is_requested: bool
) -> None:
    """As torchrun's: the command, which gets it too, may be dead before this process wakes up."""
    one = begin(tmp_path, "echo ready; exec sleep 60")
    assert one.child is not None
    one.child.send(signum)
    Cluster.until(lambda: not procfs.is_alive(one.child.pid), 10, "it is dead")
    tell(signal.SIGTERM if signum == signal.SIGKILL else signum)
    assert one.wait() == 128 + signum
    assert one.is_ending
    assert one.is_requested == is_requested


def test_a_command_that_was_stopped_can_still_end_by_itself(tmp_path: Path) -> None:
    """It goes on for that: it may have something to save."""
    one = begin(tmp_path, "trap 'exit 75' TERM; echo ready; while :; do sleep 0.05; done")
    assert one.child is not None
    one.child.send(signal.SIGSTOP)
    tell(signal.SIGTERM)
    assert one.wait() == 75


@pytest.mark.slow
def test_who_ignores_it_is_killed_after_the_grace(tmp_path: Path) -> None:
    """Not before."""
    one = begin(tmp_path, "trap '' TERM; echo ready; while :; do sleep 0.05; done", DDP_GRACE="1")
    began_s = time.monotonic()
    tell(signal.SIGTERM)
    assert one.wait() == 137
    assert 0.9 < time.monotonic() - began_s < 5


@pytest.mark.slow
def test_the_grace_is_short_where_a_rank_has_failed(tmp_path: Path) -> None:
    """The others wait in a collective that nobody will complete."""
    one = begin(tmp_path, "trap '' TERM; echo ready; while :; do sleep 0.05; done", DDP_GRACE="60")
    (tmp_path / "events.jsonl").write_text(json.dumps(FAILED) + "\n")
    began_s = time.monotonic()
    tell(signal.SIGTERM)
    assert one.wait() == 137
    assert time.monotonic() - began_s < 20


@pytest.mark.slow
def test_a_file_system_that_is_stuck_does_not_stay_the_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads the events there waits, and nobody else."""
    monkeypatch.setattr(task, "has_failed", lambda *_: time.sleep(3600))
    one = begin(tmp_path, "trap '' TERM; echo ready; while :; do sleep 0.05; done", DDP_GRACE="1")
    tell(signal.SIGTERM)
    assert one.wait() == 137


@pytest.mark.slow
def test_each_request_for_a_checkpoint_reaches_who_catches_it(tmp_path: Path) -> None:
    """And nobody who would be ended by it."""
    script = (
        "bash -c 'trap \"echo told\" USR1; echo ready; for _ in 1 2 3; do sleep 1; done' & wait"
    )
    one = begin(tmp_path, script)
    tell(signal.SIGUSR1)
    assert one.wait() == 0
    assert one.is_requested
    assert not one.is_ending
    assert "told" in (tmp_path / "log").read_text()


def test_a_request_that_nobody_catches_is_none(tmp_path: Path) -> None:
    """Such a command failed by itself."""
    one = begin(tmp_path, "echo ready; sleep 0.5; exit 3")
    tell(signal.SIGUSR1)
    assert one.wait() == 3
    assert not one.is_requested


def test_a_signal_before_there_is_a_command(tmp_path: Path) -> None:
    """It gets it as soon as it runs; SIGTERM counts more than a request for a checkpoint."""
    env = {"PATH": os.environ["PATH"], "DDP_LAUNCH_ID": "x", "DDP_ATTEMPT": "2"}
    one = Task(env | {"DDP_RUN_DIR": str(tmp_path)}, "0", str(tmp_path / "log"), Loop())
    for signum in (signal.SIGTERM, signal.SIGUSR1):
        tell(signum)
        one._loop.pause(0.01)  # noqa: SLF001 -- runs it a little
    one.start(["sleep", "60"], Streams(one.log_fd, one.log_fd), signal.SIGKILL)
    assert one.wait() == 143
    assert one.is_requested


@pytest.mark.slow
def test_what_it_left_behind_is_ended(tmp_path: Path) -> None:
    """By what it carries."""
    one = begin(tmp_path, "setsid sleep 600 & echo ready; exit 0")
    assert one.wait() == 0
    (left,) = one.descendants()
    one.sweep()
    assert not procfs.is_alive(left)


def test_children_from_before_are_not_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pyxis starts a mounted image's container so: without it the agent has no /proc, no Python."""
    for name in ("adopt_orphans", "reap_orphans"):  # this process has children of its own
        monkeypatch.setattr(processes, name, lambda *_: None)
    sleep = ("sleep", "600")
    with subprocess.Popen(sleep) as container:
        one = Task({"DDP_LAUNCH_ID": "x"}, "0", str(tmp_path / "log"), Loop(), adopts_orphans=True)
        with subprocess.Popen(sleep) as daemon:
            one.sweep()
        assert daemon.returncode == -signal.SIGTERM
        assert container.poll() is None
        container.kill()


@pytest.mark.parametrize(
    ("change", "failed"),
    [
        ({}, True),
        ({"code": 137}, True),
        ({"code": 0}, False),
        ({"code": 75}, False),
        ({"requested": True}, False),
        ({"attempt": 1}, False),
        ({"attempt": 22}, False),
        ({"event": "decision"}, False),
        ({"event": "verdict"}, True),
        ({"event": "verdict", "attempt": 1}, False),
    ],
)
def test_a_rank_has_failed(tmp_path: Path, change: dict[str, object], *, failed: bool) -> None:
    """In this attempt, and neither on request nor with a checkpoint written; or one hangs."""
    line = json.dumps(FAILED | change)
    (tmp_path / "events.jsonl").write_bytes(b"\0\0\n" + line.encode() + b"\n" + b'{"rank_end"')
    assert has_failed(RunDir(str(tmp_path)), 2) is failed
    assert not has_failed(RunDir(str(tmp_path / "none")), 2)
