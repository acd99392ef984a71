"""A hostile user of the recorder: wrong options, odd paths, names that are no text."""

from __future__ import annotations

import os
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


def _loop(log: Path) -> None:
    log.symlink_to(log)


def _link(log: Path) -> None:
    (log.parent / "mine").touch()
    log.symlink_to("mine")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("put", [_loop, _link, os.mkfifo])
def test_a_log_that_is_no_plain_file_is_refused(put: Any, tmp_path: Path, ask: Any) -> None:
    """As of all files of a run: waiting mends none, and a link may lead to a file of ours."""
    put(tmp_path / "x.gutil")
    code, _, err = ask("record", "--out", tmp_path / "x.gutil")
    assert (code, err.count("\n")) == (64, 1)
    assert "name a plain file" in err
    assert not [file for file in tmp_path.iterdir() if file.is_file() and file.stat().st_size]


def test_the_recorder_writes_no_name_as_it_is() -> None:
    """A node's or job's name that is no text would not be written at all, and end the recorder."""
    line = gutil.comment("host", "n\udcff\n1\x1b[31m")
    assert line == "## host: n\\udcff 1\\x1b[31m\n"
    assert gutil.parse_comment(line.strip()) == ("host", "n\\udcff 1\\x1b[31m")
