"""The log of events: written whole, read whatever is left of it."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rundir import events

if TYPE_CHECKING:
    from pathlib import Path


def test_an_event_has_the_keys_of_the_contract_in_order() -> None:
    """Time, event, source, attempt, host, and then its own."""
    lines: list[bytes] = []
    events.EventLog(lines.append, "trainer", 2, "n1", now=lambda: 0.123456).write("x", loss=1e400)
    expected = (
        b'{"time": "1970-01-01T00:00:00.123Z", "event": "x", "source": "trainer", '
        b'"attempt": 2, "host": "n1", "loss": null}\n'
    )
    assert lines == [expected]


def test_half_a_line_gets_its_end(tmp_path: Path) -> None:
    """What somebody could not finish costs that line alone."""
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"event": "st')
    events.append(str(path), b'{"event": "end"}\n')
    assert events.read(path.read_bytes()) == ([{"event": "end"}], 1)


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody must know: the caller decides what it costs."""
    monkeypatch.setattr("os.write", lambda _fd, _data: 1)
    with pytest.raises(OSError, match=r"No space left.*: 1 of 3 bytes") as caught:
        events.append(str(tmp_path / "events.jsonl"), b"{}\n")
    assert caught.value.errno == errno.ENOSPC


def test_what_a_node_kept_is_merged_once(tmp_path: Path) -> None:
    """Identical lines are one event; others come after what was delivered."""
    (tmp_path / "events.jsonl").write_bytes(b'{"n": 1}\n{"n": 2}\n')
    (tmp_path / "events.n1.jsonl").write_bytes(b'{"n": 2}\n{"n": 3}\n')
    (tmp_path / "events.n2.x.jsonl").write_bytes(b'{"n": 4}\n')
    found, num_bad = events.read(events.read_run(str(tmp_path)))
    assert ([event["n"] for event in found], num_bad) == ([1, 2, 3, 4], 0)


def test_events_of_many_writers_do_not_mix(tmp_path: Path) -> None:
    """Four writers with long lines at once: every line is whole."""
    path = tmp_path / "events.jsonl"

    def write(number: int) -> None:
        log = events.EventLog(partial(events.append, str(path)), "monitor", 1, f"n{number}")
        for _ in range(50):
            log.write("note", text="x" * 9000)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found, num_bad = events.read(path.read_bytes())
    assert (len(found), num_bad) == (200, 0)


def test_half_a_line_is_an_error_and_costs_no_other_line(tmp_path: Path) -> None:
    """On a disk that has room for a part of it; who writes next begins on a line of its own."""
    path = tmp_path / "events.jsonl"
    log = events.EventLog(partial(events.append, str(path)), "monitor", 1, "n1")
    log.write("start")
    program = (
        "import resource, sys\n"
        "from functools import partial; from rundir.events import EventLog, append\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({path.stat().st_size + 20},) * 2)\n"
        "try:\n"
        "    log = EventLog(partial(append, sys.argv[1]), 'monitor', 1, 'n1')\n"
        "    log.write('verdict', text='x' * 100)\n"
        "except OSError as error:\n"
        "    print(error.errno, error.filename)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, path], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{errno.ENOSPC} {path}\n"
    log.write("end", code=0)
    log.write("note")
    found, num_bad = events.read(path.read_bytes())
    assert [one["event"] for one in found] == ["start", "end", "note"]
    assert num_bad == 1
    assert b"\n\n" not in path.read_bytes()


@given(st.integers(0, 400), st.binary(max_size=40))
def test_events_cut_anywhere_are_read_as_far_as_they_go(cut: int, garbage: bytes) -> None:
    """A torn last line, or garbage in the file, is counted and the rest is there."""
    whole = "".join(json.dumps({"event": "note", "n": n}) + "\n" for n in range(4)).encode()
    found, num_bad = events.read(whole[:cut])
    assert len(found) >= whole[:cut].count(b"\n")
    assert len(found) + num_bad <= 4
    found, _ = events.read(whole + garbage + b"\n" + whole)
    assert len(found) >= 8


def test_a_nan_is_no_value() -> None:
    """It would make what is written of it no JSON."""
    assert events.parse(b'{"event": "x", "loss": NaN, "most": -Infinity}') == {
        "event": "x",
        "loss": None,
        "most": None,
    }


def test_nothing_is_kept_in_a_directory_that_is_gone(tmp_path: Path) -> None:
    """A run whose directory was removed while it ran still ends as its ranks did."""
    assert events.undelivered(str(tmp_path / "gone")) == {}
