import math
from datetime import UTC, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.logs import log_events
from monitor.logs.log_events import LogEvent

BERLIN = timezone(timedelta(hours=1))
XID = LogEvent(1795258800.0, "xid", 3, {"xid": "79", "text": "GPU_has_fallen_off_the_bus"})
LINE = "## event: 2026-11-21T12:00:00.000+01:00 xid gpu=3 xid=79 text=GPU_has_fallen_off_the_bus\n"


def test_a_mark_is_one_line() -> None:
    """Time with its offset, kind, GPU, then what else is known."""
    assert log_events.line(XID, BERLIN) == LINE
    assert log_events.parse(LINE.removeprefix("## event: ").rstrip("\n")) == XID


def test_an_unknown_moment() -> None:
    """It has a `-`, and comes back as NaN."""
    line = log_events.line(LogEvent(math.nan, "reopened"), UTC)
    assert line == "## event: - reopened\n"
    read = log_events.parse("- reopened")
    assert read is not None
    assert math.isnan(read.time_s)
    assert (read.kind, read.gpu, read.details) == ("reopened", None, {})


def test_blanks_and_ends_of_lines_stay_out_of_values() -> None:
    """Whatever a driver says, it is one word of one line, and never an empty one."""
    line = log_events.line(
        LogEvent(0.0, "xid", None, {"text": " a\nb\u2028 c=d ", "more": ""}), UTC
    )
    assert line == "## event: 1970-01-01T00:00:00.000+00:00 xid text=a_b_c=d more=-\n"


@pytest.mark.parametrize(
    "value",
    [
        "",
        "-",
        "- ",
        "- Xid",
        "now xid",
        "2026-11-21T12:00:00 xid",
        "2026-13-21T12:00:00.000+01:00 xid",
        "0001-01-01T00:00:00.000+23:59 xid gpu=x",
        "0001-01-01T00:00:00.000+23:59 xid",
        "9999-12-31T23:59:59.999-23:59 xid",
        "- xid gpu=-1",
        "- xid gpu=03",
        "- xid xid",
        "- xid xid=",
        "- xid =79",
        "- xid xid=79 xid=13",
        "- xid  xid=79",
    ],
)
def test_what_is_no_whole_mark_is_none(value: str) -> None:
    """A line that is torn, damaged or of somebody else is not believed."""
    assert log_events.parse(value) is None


words = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
made = st.builds(
    LogEvent,
    st.integers(0, 4_000_000_000_000).map(lambda ms: ms / 1000),
    words,
    st.none() | st.integers(0, 127),
    st.dictionaries(words.filter(lambda w: w != "gpu"), st.from_regex(r"[!-~]+", fullmatch=True)),
)


@given(made, st.integers(-840, 840))
def test_what_is_written_is_read_again(mark: LogEvent, minutes: int) -> None:
    """To the millisecond, whatever the offset."""
    zone = timezone(timedelta(minutes=minutes))
    line = log_events.line(mark, zone)
    assert log_events.parse(line.removeprefix("## event: ").rstrip("\n")) == mark


@given(st.text())
def test_no_text_makes_the_reader_fail(value: str) -> None:
    """Garbage is None, never an error."""
    assert log_events.parse(value) is None or value.isprintable()
