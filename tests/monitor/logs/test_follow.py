"""Following a file that another process writes."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.logs.follow import Follower

LARGE = 2**20


def append(path: Path, data: bytes) -> None:
    """Write some more."""
    with path.open("ab") as file:
        file.write(data)


def test_only_what_is_new_comes_in_whole_lines(tmp_path: Path) -> None:
    """A torn last line waits for its end; nothing comes twice."""
    path = tmp_path / "log"
    follower = Follower(str(path), LARGE)
    assert follower.poll() == b""
    assert not follower.is_there
    append(path, b"one\ntw")
    assert follower.poll() == b"one\n"
    assert follower.poll() == b""
    append(path, b"o")
    assert follower.poll() == b""
    append(path, b"\nthree\n")
    assert follower.poll() == b"two\nthree\n"
    assert follower.is_there
    assert follower.num_begun == 1


def test_a_file_that_is_as_it_was_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most polls find nothing new, and cost one call."""
    path = tmp_path / "log"
    append(path, b"one\ntorn")
    follower = Follower(str(path), LARGE)
    follower.poll()
    monkeypatch.setattr("builtins.open", None)  # opening it would be an error
    assert follower.poll() == b""


def test_a_large_file_is_read_from_its_last_part(tmp_path: Path) -> None:
    """The first poll begins at a line's beginning, and learns the head aside."""
    path = tmp_path / "log"
    append(path, b"".join(b"line %03d\n" % i for i in range(100)))
    follower = Follower(str(path), tail_bytes=30, head_bytes=25)
    assert follower.poll() == b"line 097\nline 098\nline 099\n"
    assert follower.head == b"line 000\nline 001\n"
    append(path, b"line 100\n")
    assert follower.poll() == b"line 100\n"


def test_more_than_anybody_wants_to_see_is_left_out(tmp_path: Path) -> None:
    """After a long stop only the last part is read."""
    path = tmp_path / "log"
    append(path, b"first\n")
    follower = Follower(str(path), tail_bytes=20)
    assert follower.poll() == b"first\n"
    append(path, b"x" * 500 + b"\n" + b"last but one\nlast\n")
    assert follower.poll() == b"last but one\nlast\n"


def test_a_line_without_an_end_does_not_stop_it(tmp_path: Path) -> None:
    """A line longer than what is read at a time is left out, in peace."""
    path = tmp_path / "log"
    follower = Follower(str(path), tail_bytes=20)
    append(path, b"x" * 500)
    assert follower.poll() == b""
    append(path, b"x" * 500)
    assert follower.poll() == b""
    append(path, b"\nnow\n")
    assert follower.poll().endswith(b"now\n")
    append(path, b"then\n")
    assert follower.poll() == b"then\n"


def test_a_rotated_file_is_read_to_its_end_first(tmp_path: Path) -> None:
    """What came to the old file after our last poll is not lost."""
    path = tmp_path / "log"
    append(path, b"one\n")
    follower = Follower(str(path), LARGE)
    follower.poll()
    append(path, b"two\n")
    path.rename(tmp_path / "log.1")
    append(path, b"three\n")
    assert follower.poll() == b"two\nthree\n"
    assert follower.num_begun == 2
    append(path, b"four\n")
    assert follower.poll() == b"four\n"


def test_an_older_rotated_file_is_none_of_ours(tmp_path: Path) -> None:
    """FILE.1 counts only if it is the file that we read."""
    path = tmp_path / "log"
    append(path, b"one\n")
    follower = Follower(str(path), LARGE)
    follower.poll()
    append(tmp_path / "log.1", b"long ago, of another file\n")
    append(tmp_path / "new", b"three\n")
    (tmp_path / "new").rename(path)
    assert follower.poll() == b"three\n"


def test_a_file_that_shrank_begins_anew(tmp_path: Path) -> None:
    """Truncated, and written again."""
    path = tmp_path / "log"
    append(path, b"one\ntwo\nthree\n")
    follower = Follower(str(path), LARGE)
    follower.poll()
    path.write_bytes(b"four\n")
    assert follower.poll() == b"four\n"


def test_a_file_written_anew_and_longer_is_noticed(tmp_path: Path) -> None:
    """Where a line of ours ended there is the middle of another one now."""
    path = tmp_path / "log"
    append(path, b"one\ntwo\n")
    follower = Follower(str(path), LARGE)
    follower.poll()
    path.write_bytes(b"something else that is longer\nand more\n")
    assert follower.poll() == b"something else that is longer\nand more\n"
    path.write_bytes(b"something else and as long..\nand more!\n")
    assert follower.poll() == b"something else and as long..\nand more!\n"


def test_a_touched_file_has_nothing_new(tmp_path: Path) -> None:
    """A shared file system may report a change twice: by size, and later by time."""
    path = tmp_path / "log"
    append(path, b"one\ntwo\n")
    follower = Follower(str(path), LARGE)
    follower.poll()
    os.utime(path, (1, 1))
    assert follower.poll() == b""
    assert follower.num_begun == 1


def test_a_file_may_vanish_and_come_back(tmp_path: Path) -> None:
    """As in the moment between a rotation and the next write."""
    path = tmp_path / "log"
    append(path, b"one\n")
    follower = Follower(str(path), LARGE)
    follower.poll()
    path.unlink()
    assert follower.poll() == b""
    assert not follower.is_there
    append(tmp_path / "other", b"two\n")
    (tmp_path / "other").rename(path)
    assert follower.poll() == b"two\n"
    assert follower.is_there


def test_what_cannot_be_read_is_an_error_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error now; all of it once it can be read."""
    path = tmp_path / "log"
    append(path, b"one\n")
    follower = Follower(str(path), LARGE)
    with monkeypatch.context() as patched:

        def refuse(*_: object) -> bytes:
            raise OSError(5, "Input/output error")

        patched.setattr(os, "pread", refuse)
        with pytest.raises(OSError, match="Input/output"):
            follower.poll()
    assert follower.poll() == b"one\n"


@given(
    st.lists(
        st.one_of(st.binary(min_size=1, max_size=30), st.sampled_from(["look", "rotate"])),
        max_size=30,
    )
)
@settings(max_examples=60, deadline=None)
def test_whatever_is_written_is_read_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[bytes | str]
) -> None:
    """Pieces of any size, polls and rotations in any order: all whole lines, in order, once."""
    path = tmp_path_factory.mktemp("follow") / "log"
    follower = Follower(str(path), LARGE)
    written, read, number = [b""], b"", 0
    for step in [*steps, "look"]:
        if isinstance(step, bytes):
            append(path, step)
            written[-1] += step
        elif step == "look":
            read += follower.poll()
        elif path.exists():
            read += follower.poll()  # a second rotation before a poll would lose a file
            # a hard link keeps the number of the old file from being given to the new one
            os.link(path, path.with_name(f"kept-{number}"))
            path.rename(path.with_name("log.1"))
            number += 1
            written.append(b"")
    assert read == b"".join(part[: part.rfind(b"\n") + 1] for part in written)
