"""Logs and events that went through a machine with Windows: byte order mark, CRLF, UTF-16."""

import shutil
from pathlib import Path

import pytest

from monitor.errors import UserError
from monitor.live import log as live_log
from monitor.live.log import TAIL_BYTES, LiveLog
from monitor.logs import gutil
from monitor.logs.newest import Newest
from monitor.runs import node_log, record
from rundir import events
from tests.monitor.logs.test_gutil import row

MARK = b"\xef\xbb\xbf"


def log(num_rows: int = 4) -> bytes:
    """A log of ours, with its offset from UTC."""
    layout = gutil.Layout("pumt")
    rows = [row(i // 2 % 60, i % 2) for i in range(num_rows)]
    return (
        gutil.comment("utc_offset", "+01:00") + layout.header() + layout.block(rows, 0)
    ).encode()


def polled(live: LiveLog) -> list[int]:
    """How many samples of each GPU there are after a poll."""
    live_log.poll([live])
    return [track.num_samples for track in live.tracks]


@pytest.mark.parametrize("mark", [b"", MARK], ids=["", "BOM"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
def test_it_reads_as_it_was_written(tmp_path: Path, mark: bytes, end: bytes) -> None:
    """By `watch`, `why` and `export`: rows, and the log's offset from UTC."""
    path = tmp_path / "log.gutil"
    path.write_bytes(log())
    wanted = [(s.time_s, s.index, s.values) for s in node_log.read(str(path)).samples]
    newest = Newest(str(path)).poll()
    assert len(wanted) == 4
    path.write_bytes(mark + log().replace(b"\n", end))
    assert [(s.time_s, s.index, s.values) for s in node_log.read(str(path)).samples] == wanted
    assert Newest(str(path)).poll() == newest
    live = LiveLog(str(path))
    assert polled(live) == [2, 2]
    assert (live.num_unreadable, live.problem, live.facts) == (0, None, {"utc_offset": "+01:00"})


def test_a_mark_is_passed_by_however_the_log_grows(tmp_path: Path) -> None:
    """Though the first poll found no whole line, and in the head of a log read from its end."""
    path = tmp_path / "log.gutil"
    path.write_bytes(MARK)
    live = LiveLog(str(path))
    polled(live)
    path.write_bytes(MARK + log())
    assert (polled(live), live.num_unreadable) == ([2, 2], 0)
    path.write_bytes(MARK + log(2 * TAIL_BYTES // 100))
    large = LiveLog(str(path))
    polled(large)
    assert large.facts == {"utc_offset": "+01:00"}


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (log().decode().encode("utf-16"), "UTF-16"),
        (b"\xfe\xff" + log().decode().encode("utf-16-be"), "UTF-16"),
        (b"\x1f\x8b\x08\n" + bytes(100), "compressed"),
    ],
    ids=["LE", "BE", "gzip"],
)
def test_what_is_no_text_is_named_until_it_is_one(tmp_path: Path, data: bytes, word: str) -> None:
    """`watch` says why it cannot be read, counts no rows, and takes up what replaces it."""
    path = tmp_path / "log.gutil"
    path.write_bytes(data)
    live = LiveLog(str(path))
    for _ in range(2):
        assert polled(live) == []
        assert word in str(live.problem)
        with path.open("ab") as file:
            file.write(b" and\n more\n")
    assert live.num_unreadable == 0
    converted = tmp_path / "converted"
    converted.write_bytes(log())
    shutil.move(converted, path)
    assert (polled(live), live.problem) == ([2, 2], None)


def test_events_with_a_mark_are_read() -> None:
    """The first event is not lost, whatever ends the lines."""
    lines = b'{"event": "start"}\n{"event": "end"}\n'
    for data in (lines, MARK + lines, MARK + lines.replace(b"\n", b"\r\n")):
        assert events.read(data) == ([{"event": "start"}, {"event": "end"}], 0)


def test_events_in_utf_16_are_no_run_without_events(tmp_path: Path) -> None:
    """`why` says what is wrong with the file, and not that the run has reported nothing yet."""
    (tmp_path / "events.jsonl").write_bytes('{"event": "start"}\n'.encode("utf-16"))
    with pytest.raises(UserError, match="must be UTF-8 text; found it is UTF-16"):
        record.read(str(tmp_path))
