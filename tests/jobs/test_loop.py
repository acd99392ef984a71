"""The loop of supervisor and agent: signals, descriptors and moments, and nothing in between."""

from __future__ import annotations

import _thread
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobs.loop import Loop
from tests.jobs.alive import sleeps

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def loop() -> Loop:
    """A loop with nothing to wait for."""
    return Loop()


def test_what_is_due_is_called_in_time(loop: Loop) -> None:
    """Each once; what was cancelled never, and a limit ends the wait."""
    called: list[str] = []
    loop.after(0.02, lambda: called.append("one"))
    loop.after(0.01, lambda: called.append("never")).cancel()
    assert not loop.run(lambda: called == ["one"] * 2, limit_s=0.1)
    assert called == ["one"]


def test_what_is_due_again_and_again_may_cancel_itself_and_others(loop: Loop) -> None:
    """Those that are due at the same time included; a loop that was held up catches up."""
    called: list[str] = []

    def first() -> None:
        called.append("first")
        second.cancel()
        if len(called) == 3:
            timer.cancel()

    timer = loop.every(0.01, first)
    second = loop.every(0.01, lambda: called.append("second"))
    time.sleep(0.05)
    assert not loop.run(lambda: len(called) > 3, limit_s=0.1)
    assert called == ["first"] * 3


def test_a_call_that_takes_long_holds_nothing_up(loop: Loop) -> None:
    """It is made in another thread, and what follows it in the loop's."""
    done: list[int] = []
    may_end = _thread.allocate_lock()
    may_end.acquire()
    loop.in_background(
        may_end.acquire, lambda is_done: done.extend([int(bool(is_done)), _thread.get_ident()])
    )
    assert not loop.run(lambda: done, limit_s=0.05)
    may_end.release()
    assert loop.run(lambda: done, limit_s=5)
    assert done == [1, _thread.get_ident()]


def test_a_call_that_fails_gives_none(loop: Loop, capfd: pytest.CaptureFixture[str]) -> None:
    """Where a disk or a limit of the machine says no, no traceback stands in the job's log."""
    done: list[object] = []
    loop.in_background(Path("/no/such").unlink, done.append)
    assert loop.run(lambda: done, limit_s=5)
    assert (done, capfd.readouterr().err) == ([None], "")


def test_a_descriptor_is_read_until_it_is_forgotten(loop: Loop) -> None:
    """A callback may forget its own."""
    reader, writer = os.pipe()
    seen: list[bytes] = []

    def read() -> None:
        seen.append(os.read(reader, 1))
        loop.forget(reader)

    loop.watch(reader, read)
    os.write(writer, b"ab")
    assert loop.run(lambda: seen, limit_s=5)
    assert not loop.run(lambda: len(seen) > 1, limit_s=0.05)
    loop.forget(reader)


def test_another_thread_wakes_it_up(loop: Loop) -> None:
    """And what it had to say is asked for in the loop."""
    news: list[int] = []
    _thread.start_new_thread(loop.wake, (lambda: news.append(_thread.get_ident()),))
    assert loop.run(lambda: news, limit_s=5)
    assert news == [_thread.get_ident()]


CATCHES = """
import os, signal, sys
from jobs.loop import Loop
loop, seen = Loop(), []
loop.catch((signal.SIGTERM, signal.SIGUSR1), seen.append)
print("ready", flush=True)
loop.run(lambda: len(seen) == 2)
print(*sorted(seen), flush=True)
loop.run(lambda: len(seen) == 3)
"""


@pytest.mark.slow
def test_signals_arrive_and_nothing_else_wakes_it() -> None:
    """Between two events there is no wake-up: a node has as many agents as GPUs."""
    process = subprocess.Popen(
        [sys.executable, "-c", CATCHES], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for signum in (signal.SIGTERM, signal.SIGUSR1):
            process.send_signal(signum)
        assert process.stdout.readline() == f"{int(signal.SIGUSR1)} {int(signal.SIGTERM)}\n"
        before = sleeps(process.pid)
        time.sleep(1)
        assert sleeps(process.pid) == before
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    finally:
        process.kill()
        process.communicate()
