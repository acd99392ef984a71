"""Rows of MIG instances, which `--gpm-options m` asks for, are not the GPU's."""

from pathlib import Path

import pytest

from monitor import cli
from monitor.live import log as live_log
from monitor.live.log import LiveLog
from monitor.logs import reader
from tests.monitor.read_rows import one_by_one

NAMES = [("gi", "Idx"), ("ci", "Idx"), ("sm", "%"), ("smutil", "GPM:%")]
GPU = ["-", "-", "98", "50"]
PART = ["1", "0", "-", "40"]


def head(names: list[tuple[str, str]]) -> str:
    """Both header lines, in cells of seven."""
    return "".join(
        start + "".join(f"{name[i]:>7}" for name in names) + " \n"
        for i, start in enumerate(("# gpu", "# Idx"))
    )


def row(cells: list[str], gpu: str = "0") -> str:
    """A row under it."""
    return f"{gpu:>5}" + "".join(f"{cell:>7}" for cell in cells) + " \n"


def csv(text: str) -> str:
    """The same, with commas."""
    return "".join(
        ("#" if line.startswith("#") else "") + ", ".join(line.lstrip("#").split()) + "\n"
        for line in text.splitlines()
    )


@pytest.mark.parametrize("form", [str, csv])
@pytest.mark.parametrize(
    "names", [["gi", "ci"], ["GI", "CI"], ["gi_id", "ci_id"], ["mig", "mig_id"]], ids="-".join
)
def test_a_part_of_a_gpu_never_passes_for_the_whole(
    tmp_path: Path, names: list[str], form: type[str]
) -> None:
    """Only the row with `-` under GI and CI is the GPU's; the others are counted, in words."""
    columns = [(names[0], "Idx"), (names[1], "Idx"), *NAMES[2:]]
    text = form(head(columns) + row(GPU) + row(PART) + row(["-", "0", "-", "40"]) + row(GPU))
    path = tmp_path / "log.gutil"
    path.write_text(text)
    log = reader.read(str(path))
    assert log.values["smutil"].tolist() == [50, 50]
    assert (log.num_unreadable, log.hints) == (2, (reader.INSTANCE,))
    assert sum(found is None for found in one_by_one(text)) == 2
    live = LiveLog(str(path))
    live_log.poll([live])
    assert [track.column("smutil").tolist() for track in live.tracks] == [[50, 50]]
    assert live.num_unreadable == 2


def test_a_column_that_numbers_something_unknown_is_not_guessed(tmp_path: Path) -> None:
    """It is unknown whose rows these are: all of them are counted."""
    path = tmp_path / "log.gutil"
    path.write_text(head([("tile", "Idx"), *NAMES[2:]]) + row(["1", "98", "50"]))
    log = reader.read(str(path))
    assert (log.num_rows, log.num_unreadable) == (0, 1)


def test_an_instance_in_the_cell_of_the_gpu_is_counted(tmp_path: Path) -> None:
    """As `0:1`, however it may be written."""
    path = tmp_path / "log.gutil"
    text = head(NAMES[2:]) + row(GPU[2:]) + row(PART[2:], "0:1") + row(PART[2:], "0/1/0")
    path.write_text(text)
    log = reader.read(str(path))
    assert (log.num_rows, log.num_unreadable) == (1, 2)


def test_the_report_says_whose_rows_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In plain words, below the tables."""
    path = tmp_path / "log.gutil"
    path.write_text(head(NAMES) + row(GPU) + row(PART))
    cli.main(["report", str(path)])
    output = " ".join(capsys.readouterr().out.split())
    assert f"1 row could not be read ({reader.INSTANCE})" in output
