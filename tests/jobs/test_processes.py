"""Processes of this machine: found, asked and ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jobs import processes
from rundir import procfs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Start = Callable[..., "subprocess.Popen[str]"]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start shells that say when they are ready, and leave none behind."""
    started: list[subprocess.Popen[str]] = []

    def begin(script: str, **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            ["bash", "-c", script], env=os.environ | env, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def test_a_zombie_has_ended(start: Start) -> None:
    """It only waits for its parent; a name with brackets is only a name."""
    process = start("echo ready; exec -a 'a) R' sleep 600")
    assert procfs.is_alive(process.pid)
    process.kill()
    deadline_s = time.monotonic() + 10
    while procfs.is_alive(process.pid):
        assert time.monotonic() < deadline_s
    assert Path(f"/proc/{process.pid}").exists()
    assert not procfs.is_alive(2**22 + 1)


def test_who_carries_a_variable(start: Start) -> None:
    """The whole of it, and not this process itself."""
    process = start("echo ready; kill -STOP $$", DDP_TEST_MARK="a=b")  # exec hides it for a moment
    assert processes.processes_with("DDP_TEST_MARK=a=b") == [process.pid]
    assert processes.processes_with("DDP_TEST_MARK=a") == []
    assert processes.processes_with("TEST_TOKEN=a=b") == []


def test_who_is_below(start: Start) -> None:
    """A child's child, and nobody beside them."""
    above = start("(sleep 600 & echo ready; wait) & wait")
    beside = start("echo ready; exec sleep 600")
    found = processes.with_descendants([above.pid])
    assert len(found) == 3
    assert above.pid in found
    assert beside.pid not in found
    assert processes.with_descendants([]) == []
    processes.stop(found, 1)


def test_who_catches_a_signal(start: Start) -> None:
    """Who ignores it, or leaves it to the system, does not."""
    pid = start("trap : USR1; trap '' USR2; echo ready; while :; do sleep 0.1; done").pid
    assert procfs.catches(pid, signal.SIGUSR1)
    assert not procfs.catches(pid, signal.SIGUSR2)
    assert not procfs.catches(pid, signal.SIGTERM)
    assert not procfs.catches(2**22 + 1, signal.SIGUSR1)


def test_they_end(start: Start) -> None:
    """By SIGTERM, and who does not hear it by SIGKILL after the grace."""
    hears = start("trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done")
    ignores = start("trap '' TERM; echo ready; while :; do sleep 0.05; done")
    pids = [hears.pid, ignores.pid, 2**22 + 1]
    processes.stop(pids, 0.5)
    assert (hears.wait(10), ignores.wait(10)) == (3, -signal.SIGKILL)
    began_s = time.monotonic()
    processes.stop([], 60)
    assert time.monotonic() - began_s < 1


def test_the_count_of_out_of_memory_kills() -> None:
    """A number with the group that it is of, where the kernel tells it."""
    found = processes.oom_kills()
    assert found is None or (found[0].startswith("/") and found[1] >= 0)


@pytest.mark.parametrize("given", [{}, {"LC_ALL": "C"}, {"LC_CTYPE": "C", "X": "a\nb="}])
def test_the_environment_is_the_users(given: dict[str, str]) -> None:
    """Python adds LC_CTYPE to its own where the locale is the system's oldest."""
    show = "import json, jobs.processes as p; print(json.dumps(p.initial_environment()))"
    done = subprocess.run(
        [sys.executable, "-c", show],
        env=given,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == given


def test_what_cannot_be_started_leaves_no_descriptor_open() -> None:
    """A job starts its ranks again and again, and what waits for a restart beside them."""

    def begin(_: int) -> list[subprocess.Popen[bytes]]:
        raise BlockingIOError

    before = sorted(Path("/proc/self/fd").iterdir())
    with pytest.raises(BlockingIOError):
        processes.piped(begin)
    assert sorted(Path("/proc/self/fd").iterdir()) == before
