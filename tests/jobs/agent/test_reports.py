"""The ways of a rank's events: up standard output, to the run's log, to the node's own file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from jobs.agent.output import Output
from jobs.agent.reports import Reports
from jobs.loop import Loop
from rundir import channel, events

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Agent:
    """What of an agent delivers events."""

    def __init__(self, run_dir: Path, *, is_supervised: bool) -> None:
        """Deliver into a pipe and a run directory."""
        self.run_dir = run_dir
        self.environ = {"DDP_RUN_DIR": str(run_dir), "DDP_NODE": "n1", "RANK": "3"}
        self.environ |= {"DDP_ATTEMPT": "2"} | ({"DDP_SUPERVISED": "1"} if is_supervised else {})
        self.reader, self._writer = os.pipe()
        os.set_blocking(self.reader, False)
        self.loop = Loop()
        self.output = Output(self._writer, lambda: self.loop.wake(self.reports.keep_undelivered))
        self.is_ending = False
        self.reports = Reports(self.environ, self.output, lambda: self.is_ending)

    def printed(self) -> list[bytes]:
        """The events on standard output."""
        assert self.loop.run(lambda: self.output.is_idle, 10)
        try:
            data = os.read(self.reader, 1 << 20)
        except BlockingIOError:
            return []
        return channel.FrameReader().feed(data)[1]

    def kept(self, name: str = "events.n1.jsonl") -> list[bytes]:
        """The lines of a file in the run directory."""
        path = self.run_dir / name
        return path.read_bytes().splitlines(keepends=True) if path.exists() else []


@pytest.fixture
def agent(tmp_path: Path) -> Callable[..., Agent]:
    """Make an agent."""
    return lambda *, is_supervised: Agent(tmp_path, is_supervised=is_supervised)


def test_a_supervisor_reads_standard_output(agent: Callable[..., Agent]) -> None:
    """There and nowhere else: nothing is written twice while all is well."""
    one = agent(is_supervised=True)
    one.reports.write("rank_up", rank=3)
    one.reports.write("failure", error="x" * 5000)
    first, second = one.printed()
    found = events.parse(first)
    assert found is not None
    assert list(found) == ["time", "event", "source", "attempt", "host", "rank"]
    assert (found["source"], found["attempt"], found["host"]) == ("launcher", 2, "n1")
    assert events.parse(second)["error"] == "x" * 5000
    assert not list(one.run_dir.iterdir())


def test_without_a_supervisor_the_log_of_events_is_written(agent: Callable[..., Agent]) -> None:
    """As a launcher by hand does."""
    one = agent(is_supervised=False)
    one.reports.write("rank_up", rank=3)
    assert one.printed() == []
    (line,) = one.kept("events.jsonl")
    assert events.parse(line)["event"] == "rank_up"


def test_what_is_told_while_the_job_ends_is_kept_as_well(agent: Callable[..., Agent]) -> None:
    """To the letter the same line, so that who reads both finds it once."""
    one = agent(is_supervised=True)
    one.reports.write("rank_up", rank=3)
    one.is_ending = True
    one.reports.write("rank_end", rank=3)
    printed = one.printed()
    assert len(printed) == 2
    assert one.kept() == printed[1:]


def test_what_a_failed_rank_reported_last_is_kept_as_well(agent: Callable[..., Agent]) -> None:
    """Srun ends the step at once, and may throw away what it had not handed on."""
    one = agent(is_supervised=True)
    one.reports.write("failure", error="bad")
    one.reports.fail()
    one.reports.write("rank_end", code=70)
    printed = one.printed()
    assert [event["event"] for event in map(events.parse, printed) if event] == [
        *("failure", "rank_end")
    ]
    assert one.kept() == printed


def test_a_supervisor_that_was_killed(agent: Callable[..., Agent]) -> None:
    """From then on events are kept, the one that did not get through among them, at once."""
    one = agent(is_supervised=True)
    os.close(one.reader)
    one.reports.write("rank_up", rank=3)
    assert one.loop.run(one.kept, 10)
    one.reports.write("rank_end", rank=3)
    assert [events.parse(line)["event"] for line in one.kept()] == ["rank_up", "rank_end"]
    one.reports.close(one.loop)
    assert len(one.kept()) == 2


@pytest.mark.slow
def test_a_supervisor_that_reads_no_more(agent: Callable[..., Agent]) -> None:
    """What has not left by the agent's end is kept."""
    one = agent(is_supervised=True)
    one.output.write_text(b"x" * 200_000 + b"\n")
    one.reports.write("rank_up", rank=3)
    one.loop.pause(0.05)
    for _ in range(2000):
        one.reports.write("failure", error="y" * 100)
    one.reports.close(one.loop)
    assert one.kept()[-1:] == [one.kept()[-1]]
    assert len(one.kept()) > 1500


@pytest.mark.parametrize("node", ["n1", "n" * 120])
def test_the_events_of_its_processes(agent: Callable[..., Agent], node: str) -> None:
    """The trainer hands its own over: its text is passed on to the letter, on any node."""
    one = agent(is_supervised=True)
    (one.run_dir / node).mkdir()
    path = str(one.run_dir / node / "agent-3")
    assert one.reports.listen(path, one.loop)
    deliver = channel.reporter(
        str(one.run_dir),
        "n1",
        {"DDP_AGENT_SOCKET": path, "DDP_SUPERVISED": "1", "DDP_RUN_DIR": str(one.run_dir)},
    )
    long = events.encode({"event": "failure", "error": "ü" * 20_000})
    for line in (long, b'{"event": "first_step"}\n'):
        deliver(line)
    one.loop.pause(0.05)
    assert one.printed() == [long, b'{"event": "first_step"}\n']
    deliver(b'{"event": "last"}\n')
    one.reports.close(one.loop)  # what is in the socket then is not lost
    assert one.printed() == [b'{"event": "last"}\n']
    os.unlink(path)  # noqa: PTH108 -- a name
    deliver(b'{"event": "late"}\n')
    assert one.kept() == [b'{"event": "late"}\n']


def test_ranks_that_are_being_ended_do_not_hang(agent: Callable[..., Agent]) -> None:
    """What their watchdog sees from then on would hide what it saw when they hung."""
    one = agent(is_supervised=True)
    assert one.reports.listen(str(one.run_dir / "agent-3"), one.loop)
    environ = one.environ | {"DDP_AGENT_SOCKET": str(one.run_dir / "agent-3")}
    log = events.EventLog(channel.reporter(str(one.run_dir), "n1", environ), "monitor", 2, "n1")
    log.write("hang_report", node="n1")
    one.loop.pause(0.05)
    one.is_ending = True
    log.write("hang_report", node="n1")
    log.write("last_beats", node="n1")
    one.reports.close(one.loop)
    names = [event["event"] for event in map(events.parse, one.printed()) if event]
    assert names == ["hang_report", "last_beats"]


def test_where_there_can_be_no_socket(agent: Callable[..., Agent]) -> None:
    """The files remain."""
    one = agent(is_supervised=True)
    assert not one.reports.listen(str(one.run_dir / "gone" / "agent-3"), one.loop)


def test_a_log_that_cannot_be_written_does_not_end_a_rank(
    agent: Callable[..., Agent], capfd: pytest.CaptureFixture[str]
) -> None:
    """It is told."""
    one = agent(is_supervised=False)
    (one.run_dir / "events.jsonl").mkdir()
    one.reports.write("rank_up", rank=3)
    assert "launcher: could not append to" in capfd.readouterr().err
