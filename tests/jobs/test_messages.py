"""Lines on standard error: they are lost, and nothing waits for long, where nobody reads them."""

from __future__ import annotations

import os
import threading
import time

import pytest

from jobs import messages


@pytest.fixture
def full() -> tuple[int, int]:
    """A pipe without room."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    while True:
        try:
            os.write(writer, b"x" * 4096)
        except BlockingIOError:
            break
    os.set_blocking(writer, True)
    return reader, writer


def test_a_reader_that_stopped_is_waited_for_once(
    full: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line is lost, and so are the next ones at once; those after it reads again are not."""
    monkeypatch.setattr(messages, "_FULL_MS", 300)
    reader, writer = full
    began_s = time.monotonic()
    for _ in range(20):
        messages.write(writer, "lost\n")
    assert 0.25 < time.monotonic() - began_s < 2
    num_bytes = len(os.read(reader, 1 << 20))
    messages.write(writer, "read\n")
    assert os.read(reader, 1 << 20) == b"read\n"
    assert num_bytes % 4096 == 0


@pytest.mark.parametrize("is_blocking", [True, False])
def test_a_slow_reader_gets_every_line(full: tuple[int, int], *, is_blocking: bool) -> None:
    """Also of a descriptor that somebody else has made not to block."""
    reader, writer = full
    os.set_blocking(writer, is_blocking)
    text = "a line of some bytes\n" * 20_000
    thread = threading.Thread(target=messages.write, args=(writer, text))
    thread.start()
    data = b""
    while not data.endswith(text.encode()):
        time.sleep(0.01)
        data += os.read(reader, 1 << 16)
    thread.join()
    assert data.lstrip(b"x") == text.encode()


def test_a_message_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    """Also where it quotes another program's lines, such as Slurm's complaint."""
    messages.info("refused (slurm_update error:\nJob is pending)")
    assert capfd.readouterr().err == "prelaunch: refused (slurm_update error: Job is pending)\n"
