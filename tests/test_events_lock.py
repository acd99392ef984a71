"""All who write events wait for each other: on NFS a lock alone keeps two nodes apart."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rundir.events
from trainer.telemetry.events import EventLog, append_line

ROOT = Path(__file__).resolve().parents[1]
WRITERS = {
    "jobs, monitor": [
        sys.executable,
        "-c",
        (
            "import sys; from functools import partial; from rundir import events\n"
            "deliver = partial(events.append, sys.argv[1] + '/events.jsonl')\n"
            "events.EventLog(deliver, 'prelaunch', 1, 'n1').write('note')"
        ),
    ],
    "trainer": [
        sys.executable,
        "-c",
        (
            "import sys; from pathlib import Path; from trainer.telemetry.events import EventLog\n"
            "EventLog(path=Path(sys.argv[1], 'events.jsonl'), attempt=1, host='n1').write('note')"
        ),
    ],
}


LIMIT_S = 2.0
"""How long a writer waits at most; documented as less than its callers do."""


def lock(path: Path) -> int:
    """Hold the file's lock until what is returned is closed."""
    held = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    return held


def events(path: Path) -> list[str]:
    """What was written."""
    return [json.loads(line)["event"] for line in path.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("writer", WRITERS)
def test_a_writer_waits_for_another(tmp_path: Path, writer: str) -> None:
    """Nothing is written as long as somebody else does."""
    path = tmp_path / "events.jsonl"
    held = lock(path)
    began_s = time.monotonic()
    process = subprocess.Popen([*WRITERS[writer], tmp_path], cwd=ROOT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.8)
    seen, waited_s = events(path), time.monotonic() - began_s
    os.close(held)
    assert process.wait(30) == 0
    assert events(path) == ["note"]
    assert seen == [] or waited_s > 1, "it did not wait"


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.slow
def test_a_lock_that_is_never_released_costs_no_event(tmp_path: Path, writer: str) -> None:
    """Such as that of a node that was lost: the event is written without."""
    path = tmp_path / "events.jsonl"
    held = lock(path)
    subprocess.run([*WRITERS[writer], tmp_path], cwd=ROOT, check=True, timeout=30)
    os.close(held)
    assert events(path) == ["note"]


@pytest.mark.slow
def test_a_slow_server_of_locks_is_waited_for_by_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try may be a call to a server that is busy: as many as there is time for, not 200."""

    def refuse(_descriptor: int, _kind: int) -> None:
        time.sleep(0.3)
        raise BlockingIOError

    monkeypatch.setattr(fcntl, "flock", refuse)
    path = tmp_path / "events.jsonl"
    began_s = time.monotonic()
    EventLog(path=path, attempt=1, host="n1").write("note")
    took_s = time.monotonic() - began_s
    assert LIMIT_S <= took_s < LIMIT_S + 2
    assert events(path) == ["note"]


def test_pauses_grow_and_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that is free soon is had soon, and many who wait do not ask all at once."""
    now_s, pauses_s = [100.0], list[float]()

    def sleep(pause_s: float) -> None:
        pauses_s.append(pause_s)
        now_s[0] += pause_s

    def refuse(_descriptor: int, _kind: int) -> None:
        raise BlockingIOError

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(rundir.events.time, "sleep", sleep)
    monkeypatch.setattr(rundir.events.time, "monotonic", lambda: now_s[0])
    rundir.events._lock(0)  # noqa: SLF001 -- by a clock of its own
    assert pauses_s[0] <= 0.01
    assert max(pauses_s) <= 0.2
    assert max(pauses_s) > 0.09
    assert len(set(pauses_s)) > 5
    assert sum(pauses_s) == pytest.approx(LIMIT_S)


def test_a_file_of_one_writer_is_not_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line of metrics.jsonl is no business of a server of locks."""

    def refuse(_descriptor: int, _kind: int) -> None:
        raise AssertionError

    monkeypatch.setattr(fcntl, "flock", refuse)
    append_line(tmp_path / "metrics.jsonl", {"step": 1})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n'
