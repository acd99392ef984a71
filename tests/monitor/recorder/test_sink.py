import errno
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from monitor import stop
from monitor.errors import UserError
from monitor.recorder.sink import Sink


@pytest.fixture
def messages() -> list[str]:
    """The messages for a person."""
    return []


def test_blocks_are_appended_whole(tmp_path: Path, messages: list[str]) -> None:
    """What was there stays; half a line is ended first."""
    path = tmp_path / "log"
    path.write_text("half")
    sink = Sink(str(path), messages.append)
    assert sink.append("one\n")
    assert sink.append("two\n")
    sink.close()
    sink.close()
    assert path.read_text() == "half\none\ntwo\n"
    assert messages == []


def test_a_short_write_is_taken_back(
    tmp_path: Path, messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When only part of a block fits nothing of it stays, so that every line is whole."""
    path = tmp_path / "log"
    sink = Sink(str(path), messages.append)
    sink.append("one\n")
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: real(fd, data[:2]))
        assert not sink.append("two\n")
        assert not sink.append("three\n")
    assert path.read_text() == "one\n"
    assert sink.append("four\n")
    assert path.read_text() == "one\nfour\n"
    assert len(messages) == 1
    sink.close()


def test_a_full_disk_is_reported_once(
    tmp_path: Path, messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses everything: one line, no end."""
    sink = Sink(str(tmp_path / "log"), messages.append)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(os, "write", Mock(side_effect=full))
    assert [sink.append("x\n") for _ in range(3)] == [False] * 3
    assert len(messages) == 1
    assert "No space left on device" in messages[0]
    sink.close()


def test_a_broken_file_is_opened_anew(tmp_path: Path, messages: list[str]) -> None:
    """After an error other than a full disk the next block goes through a new descriptor."""
    path = tmp_path / "log"
    sink = Sink(str(path), messages.append)
    sink.append("one\n")
    os.close(sink._fd or 0)  # noqa: SLF001 - as a network file system does it under our feet
    assert not sink.append("two\n")
    assert sink.append("three\n")
    assert path.read_text() == "one\nthree\n"
    sink.close()


def test_a_file_that_was_moved_away_elsewhere_is_followed_by_a_new_one(
    tmp_path: Path, messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on another machine of a network file system: the next block is told that it is first."""
    path = tmp_path / "log"
    sink = Sink(str(path), messages.append)
    assert not sink.turn()
    assert sink.append("one\n")
    path.rename(tmp_path / "moved")
    with monkeypatch.context() as patch:
        stale = OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        patch.setattr(os, "write", Mock(side_effect=stale))
        assert not sink.append("two\n")
    assert sink.turn()
    assert not sink.turn()
    assert sink.append("three\n")
    assert path.read_text() == "three\n"
    sink.close()


def test_a_half_line_on_a_full_disk_is_ended_when_there_is_room(
    tmp_path: Path, messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next header would stand behind it, and no row below could be read."""
    path = tmp_path / "log"
    path.write_text("a half li")
    with monkeypatch.context() as patch:
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        patch.setattr(os, "write", Mock(side_effect=full))
        sink = Sink(str(path), messages.append)
        assert not sink.append("one\n")
    assert sink.append("two\n")
    assert sink.append("three\n")
    assert path.read_text() == "a half li\ntwo\nthree\n"
    sink.close()


def test_trouble_that_passes_is_no_users_fault(
    tmp_path: Path, messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full at the start is waited for; a missing directory is an error."""

    def refuse(*_args: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        sink = Sink(str(tmp_path / "log"), messages.append)
    assert sink.append("one\n")
    assert len(messages) == 1
    sink.close()
    with pytest.raises(UserError, match="create its directory first"):
        Sink(str(tmp_path / "none" / "log"), messages.append)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that could be a parent."""
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("pidfd", [True, False])
def test_a_zombie_counts_as_dead(
    sleeper: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    *,
    pidfd: bool,
    patience: Callable[[float], float],
) -> None:
    """A parent that was killed but not yet waited for has ended."""
    if not pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    monkeypatch.setattr(stop.signal, "set_wakeup_fd", lambda *_a, **_k: -1)
    monkeypatch.setattr(stop.signal, "signal", lambda *_a: None)
    watching = stop.ProcessStop(sleeper.pid)
    began = time.monotonic()
    assert watching.wait(0.1) is None
    assert time.monotonic() - began >= 0.1
    sleeper.kill()
    assert watching.wait(5) is stop.Reason.ORPHANED
    assert time.monotonic() - began < patience(1.5)


def test_no_such_process_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was never there has ended, with pidfd and without."""
    monkeypatch.setattr(stop.signal, "set_wakeup_fd", lambda *_a, **_k: -1)
    monkeypatch.setattr(stop.signal, "signal", lambda *_a: None)
    assert stop.ProcessStop(999999999).wait(5) is stop.Reason.ORPHANED
    monkeypatch.delattr(os, "pidfd_open")
    assert stop.ProcessStop(999999999).wait(5) is stop.Reason.ORPHANED
