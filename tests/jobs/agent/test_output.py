"""An agent's standard output: whatever its reader does, the agent goes on."""

from __future__ import annotations

import os
import threading
import time

from jobs.agent.output import Output

EVENT = (b'{"event": "x"}\n', b"\x1eddp 0.1 1/1 x\n")


def until(condition: object, limit_s: float = 10) -> None:
    """Wait for what another thread does."""
    deadline_s = time.monotonic() + limit_s
    while not condition():  # type: ignore[operator] # a callable
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def test_everything_comes_out_in_order() -> None:
    """Text as it was given, and the waiter is told when all is written."""
    reader, writer = os.pipe()
    news = threading.Event()
    output = Output(writer, news.set)
    for number in range(100):
        output.write_text(b"line %d\n" % number)
    if not output.is_idle:
        assert news.wait(10)
    assert output.is_idle
    assert os.read(reader, 1 << 16) == b"".join(b"line %d\n" % n for n in range(100))


def test_a_reader_that_sleeps_blocks_nobody_and_events_go_first() -> None:
    """Text has a bound, and is written in whole lines; an event overtakes what waits."""
    reader, writer = os.pipe()
    output = Output(writer, lambda: None)
    line = b"x" * 99 + b"\n"
    num_lines = 0
    while not output.is_full:
        output.write_text(line * 1000)
        num_lines += 1000
    output.write_event(*EVENT)
    assert not output.is_idle
    assert num_lines * 100 < 3 << 20
    data = b""
    while len(data) < num_lines * 100 + len(EVENT[1]):
        data += os.read(reader, 1 << 16)
    assert data.replace(EVENT[1], b"") == line * num_lines
    assert data.index(EVENT[1]) < 200_000
    until(lambda: output.is_idle)


def test_a_descriptor_that_does_not_block_loses_nothing() -> None:
    """Whoever has the other end may have set it so: what it does not take yet, it gets later."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    output = Output(writer, lambda: None)
    text = b"x" * 99 + b"\n"
    output.write_text(text * 5000)
    data = b""
    while len(data) < 500_000:
        time.sleep(0.01)
        data += os.read(reader, 1 << 16)
    assert data == text * 5000
    assert not output.is_broken


def test_a_write_to_a_pipe_of_several_writers_ends_with_a_line() -> None:
    """Else another rank's line would begin in the middle of one."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    output = Output(writer, lambda: None)
    output.write_text(b"y" * 3000 + b"\n" + b"z" * 3000 + b"\n")
    until(lambda: output.is_idle)
    assert os.read(reader, 1 << 16).count(b"\n") == 2


def test_nobody_reads_any_more() -> None:
    """What was to be told is given back, and further text is dropped."""
    reader, writer = os.pipe()
    news = threading.Event()
    output = Output(writer, news.set)
    os.close(reader)
    output.write_event(*EVENT)
    assert news.wait(10)
    assert output.is_broken
    assert output.is_idle
    assert output.take_undelivered() == [EVENT[0]]
    output.write_text(b"x" * (2 << 20))
    assert not output.is_full


def test_a_full_disk() -> None:
    """It is no reason to end, either."""
    output = Output(os.open("/dev/full", os.O_WRONLY), lambda: None)
    output.write_text(b"x\n")
    until(lambda: output.is_broken)
