"""The log of events: written whole, read whatever is left of it."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

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


def test_a_full_disk_is_an_error() -> None:
    """Somebody must know: the caller decides what it costs."""
    with pytest.raises(OSError, match="No space left") as caught:
        events.append("/dev/full", b"{}\n")
    assert caught.value.errno == errno.ENOSPC


def test_what_a_node_kept_is_merged_once(tmp_path: Path) -> None:
    """Identical lines are one event; others come after what was delivered."""
    (tmp_path / "events.jsonl").write_bytes(b'{"n": 1}\n{"n": 2}\n')
    (tmp_path / "events.n1.jsonl").write_bytes(b'{"n": 2}\n{"n": 3}\n')
    (tmp_path / "events.n2.x.jsonl").write_bytes(b'{"n": 4}\n')
    found, num_bad = events.read(events.read_run(str(tmp_path)))
    assert ([event["n"] for event in found], num_bad) == ([1, 2, 3, 4], 0)
