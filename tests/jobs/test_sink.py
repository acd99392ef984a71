"""What is written by a thread of its own: a file system that stalls holds up nothing."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from jobs.loop import Loop
from jobs.sink import Sink
from jobs.supervisor import journal as journals
from jobs.supervisor.journal import Journal
from rundir import events
from rundir.paths import RunDir

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


class Stalling:
    """A file whose writes do not return before it is let go."""

    def __init__(self) -> None:
        """It stalls from the beginning on."""
        self.is_writing = threading.Event()
        self.is_free = threading.Event()
        self.is_done = threading.Event()
        self.data = b""

    def write(self, data: bytes) -> None:
        """Write to it."""
        self.is_writing.set()
        assert self.is_free.wait(30)
        self.data += data


def test_everything_is_written_in_order() -> None:
    """And who waits is told when it is."""
    written: list[bytes] = []
    is_done = threading.Event()
    sink = Sink(written.append, is_done.set)
    for number in range(1000):
        sink.put(b"%d\n" % number)
    while not sink.is_idle:
        assert is_done.wait(10)
        is_done.clear()
    assert b"".join(written) == b"".join(b"%d\n" % number for number in range(1000))


def test_what_finds_no_room_is_lost_and_counted_once() -> None:
    """Nobody waits for a file that stalls; when it goes on, so does the rest, in order."""
    file = Stalling()
    sink = Sink(file.write, file.is_done.set, max_pending=100)
    sink.put(b"a" * 60)
    assert file.is_writing.wait(10)
    for text in (b"b" * 60, b"c" * 60, b"d" * 60):  # returns at once, whatever becomes of it
        sink.put(text)
    assert not sink.is_idle
    file.is_free.set()
    while not sink.is_idle:
        assert file.is_done.wait(10)
        file.is_done.clear()
    sink.put(b"e")
    while not sink.is_idle:
        assert file.is_done.wait(10)
        file.is_done.clear()
    assert file.data == b"a" * 60 + b"b" * 60 + b"e"
    assert sink.take_lost() == 120
    assert sink.take_lost() == 0


def test_a_file_system_that_stalls_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a write that takes too long; where it fails, or there is none, nothing stalls."""
    file = Stalling()
    monkeypatch.setattr(journals, "_STUCK_S", 0.0)
    monkeypatch.setattr(events, "append", lambda _path, data: file.write(data))
    journal = Journal(Loop(), RunDir(os.fspath(tmp_path)), "n")
    journal.open(1)
    assert not journal.is_stuck
    journal.write("rank_up", rank=0, node="n")
    assert file.is_writing.wait(10)
    assert journal.is_stuck
    monkeypatch.setattr(journals, "_STUCK_S", 60.0)
    assert not journal.is_stuck
    monkeypatch.setattr(journals, "_STUCK_S", 0.0)
    file.is_free.set()
    journal.flush()
    assert not journal.is_stuck


def test_a_write_that_fails_loses_itself_alone() -> None:
    """A disk may be full for a while."""
    written: list[bytes] = []
    is_done = threading.Event()

    def write(data: bytes) -> None:
        if data == b"lost":
            raise OSError
        written.append(data)

    sink = Sink(write, is_done.set)
    for data in (b"lost", b"kept"):
        sink.put(data)
        while not sink.is_idle:
            assert is_done.wait(10)
            is_done.clear()
    assert written == [b"kept"]


def test_reports_that_a_stalled_file_system_has_no_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The job goes on and knows them all; the file lacks them, and one line says how many bytes."""
    file = Stalling()
    monkeypatch.setattr(journals, "_MAX_PENDING", 1000)
    monkeypatch.setattr(events, "append", lambda _path, data: file.write(data))
    journal = Journal(Loop(), RunDir(os.fspath(tmp_path)), "n")
    journal.open(1)
    lines: list[bytes] = []
    log = events.EventLog(lines.append, "launcher", 1, "n")
    for rank in range(100):
        log.write("rank_up", rank=rank, node="n")
    for line in lines:
        journal.add(line)
    assert journal.reports.num_started == 100
    file.is_free.set()
    journal.flush()
    journal.flush()
    kept = file.data.splitlines(keepends=True)
    assert kept == lines[: len(kept)]
    assert 1000 < len(file.data) < 2000
    num_lost = sum(map(len, lines)) - len(file.data)
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert f" lacks {num_lost} bytes " in said
