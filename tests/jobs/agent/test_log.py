"""A rank's log on its way into the job's."""

from __future__ import annotations

import errno
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from jobs.agent import log
from jobs.agent.log import LogFollower
from jobs.agent.output import Output
from jobs.loop import Loop

if TYPE_CHECKING:
    from pathlib import Path


class Following:
    """A log that is followed into a pipe."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        """Follow from a place on."""
        path.touch()
        self.path = path
        self.reader, writer = os.pipe()
        os.set_blocking(self.reader, False)
        self.loop = Loop()
        self.output = Output(writer, self.loop.wake)
        self.follower = LogFollower(str(path), offset, "3", self.loop, self.output)
        self.seen = b""

    def add(self, data: bytes) -> None:
        """Write to the log."""
        with self.path.open("ab") as file:
            file.write(data)

    def until(self, text: bytes) -> None:
        """Wait until this, and no more, has come out."""
        assert self.loop.run(lambda: self.read() == text, limit_s=10), self.seen[-200:]

    def read(self) -> bytes:
        """All that has come out so far."""
        try:
            while data := os.read(self.reader, 1 << 16):
                self.seen += data
        except BlockingIOError:
            # The follower's thread does not wake the loop of somebody who polls.
            self.loop.after(0.01, lambda: None)
        return self.seen

    def finish(self) -> bytes:
        """Copy the rest."""
        self.follower.finish(5)
        return self.read()


@pytest.fixture(params=["inotify", "polling"])
def following(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: Any) -> Following:
    """A log, followed by either way."""
    if request.param == "polling":
        monkeypatch.setattr(log, "_watch_file", lambda _: None)
    return Following(tmp_path / "rank-3.log")


def test_lines_appear_while_the_rank_runs(following: Following) -> None:
    """Each with its rank; a line that has no end yet waits for it."""
    following.follower.start()
    following.add(b"one\ntwo\nhal")
    following.until(b"[3] one\n[3] two\n")
    following.add(b"f\n")
    following.until(b"[3] one\n[3] two\n[3] half\n")
    assert following.finish() == b"[3] one\n[3] two\n[3] half\n"


def test_a_last_line_without_end_gets_one(following: Following) -> None:
    """What others say next must not be taken for its own."""
    following.follower.start()
    following.add(b"a\n\n50%")
    assert following.finish() == b"[3] a\n[3] \n[3] 50%\n"


def test_nothing_is_copied_twice_or_from_an_attempt_before(tmp_path: Path) -> None:
    """It begins where this attempt does."""
    (tmp_path / "log").write_bytes(b"before\n")
    following = Following(tmp_path / "log", offset=7)
    following.add(b"now\n")
    assert following.finish() == b"[3] now\n"
    assert Following(tmp_path / "log", offset=11).finish() == b""


def test_a_line_longer_than_any_buffer(tmp_path: Path) -> None:
    """It is one line, with one rank before it."""
    following = Following(tmp_path / "log")
    following.follower.start()
    text = b"=" * 200_000
    following.add(text)
    following.add(b"\nnext\n")
    following.until(b"[3] " + text + b"\n[3] next\n")


def test_marks_are_not_a_ranks_to_write(following: Following) -> None:
    """They would be taken for an event's beginning."""
    following.add(b"a\x1eddp 1 1/1 {}\n\x1e\n")
    assert following.finish() == b"[3] addp 1 1/1 {}\n[3] \n"


@pytest.mark.slow
def test_a_log_that_its_writer_empties(following: Following) -> None:
    """What comes then is copied, as `tail` does."""
    following.follower.start()
    following.add(b"a long first line\n")
    following.until(b"[3] a long first line\n")
    following.path.write_bytes(b"")
    following.loop.pause(0.3)
    following.add(b"b\n")
    following.until(b"[3] a long first line\n[3] b\n")


def test_a_log_that_can_be_read_no_more(following: Following, monkeypatch: Any) -> None:
    """Somebody removed it on the file server: the rank goes on, and so does who follows."""
    following.follower.start()
    following.add(b"one\n")
    following.until(b"[3] one\n")
    with monkeypatch.context() as stale:
        stale.setattr(os, "pread", _stale)
        following.add(b"two\n")
        following.loop.pause(0.5)
    assert following.finish() == b"[3] one\n[3] two\n"


def _stale(*_: object) -> bytes:
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))


def test_a_reader_that_is_stuck_costs_a_limited_time(tmp_path: Path) -> None:
    """The rest stays in the rank's own log."""
    following = Following(tmp_path / "log")
    following.add(b"x" * 99 + b"\n" + (b"y" * 99 + b"\n") * 40_000)
    began_s = time.monotonic()
    following.follower.finish(0.2)
    assert time.monotonic() - began_s < 5
    assert following.read().startswith(b"[3] " + b"x" * 99)


@pytest.mark.slow
def test_a_quiet_log_wakes_nobody(tmp_path: Path) -> None:
    """With inotify the loop sleeps until something is written."""
    following = Following(tmp_path / "log")
    following.follower.start()
    turns: list[float] = []
    began_s = time.monotonic()
    following.loop.run(lambda: turns.append(time.monotonic()), limit_s=1)
    assert time.monotonic() - began_s >= 1
    assert len(turns) <= 3
