"""Events on their way from a rank to the supervisor, between the lines of logs."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rundir import channel, events

if TYPE_CHECKING:
    from pathlib import Path

LONG = events.encode({"event": "failure", "error": "é" * 3000})


def read_all(data: bytes, size: int = 1 << 20) -> tuple[bytes, list[bytes]]:
    """Feed a reader piece by piece."""
    reader = channel.FrameReader()
    passed, lines = b"", []
    for at in range(0, len(data), size):
        text, found = reader.feed(data[at : at + size])
        passed += text
        lines += found
    return passed, lines


def test_frames_are_shorter_than_what_srun_cuts() -> None:
    """Every line of a long event stays below 1,024 bytes."""
    assert max(map(len, channel.frames(LONG, "n1.3.17").split(b"\n"))) < 1000


@settings(deadline=None)
@given(st.integers(1, 50), st.lists(st.sampled_from([b"[0] text\n", b"x" * 1500, b"\n"])))
def test_whatever_the_pieces_events_and_text_are_distinguished(
    size: int, texts: list[bytes]
) -> None:
    """However a pipe cuts the stream, every event and every byte of text comes out."""
    data = b"".join(text + channel.frames(LONG, f"a.{i}") for i, text in enumerate(texts))
    assert read_all(data, size) == (b"".join(texts), [LONG] * len(texts))


def test_a_frame_in_the_middle_of_a_line() -> None:
    """Srun puts one rank's frame between the pieces of another one's long line."""
    frame = channel.frames(b'{"event": "rank_up"}\n', "n2.1.0")
    assert read_all(b"AAAA" + frame + b"BBBB\n") == (b"AAAABBBB\n", [b'{"event": "rank_up"}\n'])


def test_parts_of_several_events_may_mix() -> None:
    """Two ranks report long events at the same time."""
    one, two = (channel.frames(LONG, name).splitlines(keepends=True) for name in ("a.1", "b.1"))
    mixed = b"".join(x + y for x, y in zip(one, two, strict=True))
    assert read_all(mixed) == (b"", [LONG, LONG])


def test_a_mark_that_is_no_frame_is_text() -> None:
    """A program may print the mark itself: nothing is swallowed, however long it goes on."""
    text = b"\x1eother\n" + b"\x1e" + b"y" * 5000
    assert read_all(text, 100)[0] == text


@pytest.mark.parametrize("supervised", ["0", "1"])
def test_an_event_is_kept_in_a_file_where_no_agent_listens(tmp_path: Path, supervised: str) -> None:
    """With a supervisor in the node's own file, which readers merge; without one in the log."""
    environ = {channel.AGENT_SOCKET: str(tmp_path / "gone"), channel.SUPERVISED: supervised}
    environ[channel.RUN_DIR] = str(tmp_path)
    (tmp_path / "events.jsonl").touch()
    log = events.EventLog(channel.reporter(str(tmp_path), "n1", environ), "trainer", 1, "n1")
    log.write("first_step", step=1)
    assert (tmp_path / "events.n1.jsonl").exists() == (supervised == "1")
    assert events.read(events.read_run(str(tmp_path)))[0][0]["step"] == 1


def test_an_agent_takes_an_event(tmp_path: Path) -> None:
    """The line arrives as one datagram, and no file is written."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
        agent.bind(str(tmp_path / "agent-0"))
        environ = {channel.AGENT_SOCKET: str(tmp_path / "agent-0"), channel.SUPERVISED: "1"}
        environ[channel.RUN_DIR] = str(tmp_path)
        channel.reporter(str(tmp_path), "n1", environ)(b"{}\n")
        assert agent.recv(100) == b"{}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["agent-0"]


def test_another_run_is_not_the_agents(tmp_path: Path) -> None:
    """A rank that starts a trainer of its own, in another run directory, has that one's log."""
    environ = {channel.AGENT_SOCKET: str(tmp_path / "agent-0"), channel.SUPERVISED: "1"}
    environ[channel.RUN_DIR] = "/another"
    channel.reporter(str(tmp_path), "n1", environ)(b"{}\n")
    assert (tmp_path / "events.jsonl").read_bytes() == b"{}\n"
