"""A hostile user of the recorder: wrong options, odd paths, names that are no text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from monitor.logs import gutil

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "options",
    [
        ["--parent-pid", str(2**70)],
        ["--parent-pid", "0"],
        ["--hang-timeout", "x"],
        ["--hang-timeout", "nan"],
        ["--hang-timeout=-1"],
    ],
    ids=["huge", "zero", "word", "no number", "negative"],
)
def test_a_wrong_option_of_the_recorder_is_one_line(
    options: list[str], tmp_path: Path, ask: Any
) -> None:
    """Also without a watchdog; and no log is left behind."""
    code, out, err = ask("record", "--out", tmp_path / "x.gutil", *options)
    assert (code, out, err.count("\n")) == (64, "", 1)
    assert not [*tmp_path.iterdir()]


def test_a_log_that_is_a_link_to_itself_is_refused(tmp_path: Path, ask: Any) -> None:
    """Waiting does not mend it."""
    loop = tmp_path / "x.gutil"
    loop.symlink_to(loop)
    code, _, err = ask("record", "--out", loop)
    assert (code, err.count("\n")) == (64, 1)


def test_the_recorder_writes_no_name_as_it_is() -> None:
    """A node's or job's name that is no text would not be written at all, and end the recorder."""
    line = gutil.comment("host", "n\udcff\n1\x1b[31m")
    assert line == "## host: n\\udcff 1\\x1b[31m\n"
    assert gutil.parse_comment(line.strip()) == ("host", "n\\udcff 1\\x1b[31m")
