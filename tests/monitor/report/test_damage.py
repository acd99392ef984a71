"""Logs that are torn, odd or foreign: what the report still tells, and what it counts."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from monitor.export.rows import table
from monitor.logs import reader
from tests.monitor.reported import NOON, Written, gpus, run


def times(log: reader.Log) -> list[datetime]:
    """The times of its rows as `export` tells them, in UTC."""
    return [time.replace(tzinfo=None) for time in table(log)["time_utc"]]


def test_host_and_offset_come_from_the_log_itself(written: Written) -> None:
    """Its own lines win over its name, and times become UTC."""
    path = written(2, head=(("host", "gpu-7"), ("utc_offset", "+02:00")))
    log = reader.read(str(path))
    assert table(log)["node"].to_list() == ["gpu-7"] * 2
    assert times(log)[0] == NOON - timedelta(hours=2)
    assert log.facts["utc_offset"] == "+02:00"
    odd = written(1, head=(("utc_offset", "-03:30"), ("utc_offset", "soon")))
    assert reader.read(str(odd)).time_s[0] == NOON.replace(tzinfo=UTC).timestamp()  # its own


def test_rows_above_the_first_offset_are_by_that_one_too(written: Written) -> None:
    """As where our recorder continues a log of dmon's."""
    path = written(3)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:-1], "## utc_offset: -05:00\n", lines[-1]]))
    log = reader.read(str(path))
    assert times(log)[0] == NOON + timedelta(hours=5)
    assert np.diff(log.time_s).tolist() == [10, 10]


def test_several_jobs_begin_by_their_own_clocks(written: Written) -> None:
    """As written; a job without a name is one of them."""
    for job in ("7", "8", "9"):
        written(2, head=(("job", job), ("utc_offset", "+03:00")), name=f"slurm-{job}.n1.gutil")
    path = written(2, head=(("job", ""),), name="x.gutil")
    done = run(path.parent)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2026-11-21 12:00") == 4, done.stdout


def test_a_job_that_ran_over_the_end_of_summer_time_begins_as_written(written: Written) -> None:
    """By the offset of then, not by that of its end."""
    for job in ("7", "8", "9", "10"):
        head = (("job", job), ("utc_offset", "+02:00"))
        path = written(2, head=head, name=f"slurm-{job}.n1.gutil")
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join([*lines[:-1], "## utc_offset: +01:00\n", lines[-1]]))
    assert run(path.parent).stdout.count("2026-11-21 12:00") == 4


def test_the_offset_may_change_within_a_log(written: Written) -> None:
    """Rows before and after the end of summer time each have their own offset."""
    path = written(2, head=(("utc_offset", "+02:00"),))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:-1], "## utc_offset: +01:00\n", lines[-1]]))
    first, second = times(reader.read(str(path)))
    assert second - first == timedelta(hours=1, seconds=10)


@pytest.mark.slow
def test_torn_and_foreign_lines_are_counted(data: Path, tmp_path: Path) -> None:
    """What cannot be read is counted and reported; the rest is there."""
    text = (data / "pumt_DT.550.163.01.2gpu.gutil").read_text()
    path = tmp_path / "torn.gutil"
    path.write_text(
        " 1 2 3\n"
        + text
        + "\n\nrc=0\n"
        + text.splitlines()[2][:60]
        + "\n"
        + text.splitlines()[2].replace("294", "2_4")
        + "\n"
        + text[:-5]
    )
    log = reader.read(str(path))
    assert (log.num_rows, log.num_unreadable, log.torn) == (7, 4, True)
    done = run(path)
    assert "4 rows could not be read; the last line has no end" in done.stdout


def test_rows_of_odd_lengths_are_read_in_their_place(data: Path, tmp_path: Path) -> None:
    """Touching cells are told apart; a value so wide that it moves its row costs the row."""
    text = (data / "pumt_DT.418.226.00.2gpu.gutil").read_text()
    lines = text.splitlines(keepends=True)
    lines[3] = lines[3].replace(" 71680", "143771")
    lines[4] = lines[4].replace(" 71680", " 1143771")
    path = tmp_path / "wide.gutil"
    path.write_text("".join(lines))
    log = reader.read(str(path))
    assert (table(log)["fb_used_mib"].to_list(), log.num_unreadable) == ([71680, 143771, 71680], 1)


def test_columns_that_change_within_a_file(written: Written, tmp_path: Path) -> None:
    """A log carried on with other columns, or by another driver, has them all."""
    one, two = written(2, letters="pumt").read_text(), written(2).read_text()
    path = tmp_path / "both.gutil"
    path.write_text(one + two)
    rows = table(reader.read(str(path)))
    assert rows.height == 4
    assert rows["host_mem_used_mib"].to_list() == [None, None, 2048, 2048]


def test_windows_line_ends_and_an_empty_file(data: Path, tmp_path: Path) -> None:
    """A copied log reads the same; an empty one has no rows and says so."""
    text = (data / "pumt_DT.550.163.01.2gpu.gutil").read_text()
    path = tmp_path / "crlf.gutil"
    path.write_bytes(text.replace("\n", "\r\n").encode())
    assert reader.read(str(path)).num_rows == 4
    path.write_text("")
    done = run(path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "no samples" in done.stdout


@pytest.mark.parametrize("byte", [b"\x00", b"\x1e", b"\x1f", b"\x1c", b"\xff"])
def test_a_stray_byte_costs_its_line_only(data: Path, tmp_path: Path, byte: bytes) -> None:
    """Whatever a damaged disk leaves in a line, all others are read."""
    whole = (data / "pumt_DT.550.163.01.2gpu.gutil").read_bytes()
    path = tmp_path / "damaged.gutil"
    path.write_bytes(whole[:-20] + byte + whole[-19:])
    log = reader.read(str(path))
    assert (log.num_rows, log.num_unreadable) == (3, 1)


def test_logs_without_dates_are_read(tmp_path: Path) -> None:
    """Written without `-o DT` they have no times: means, but no energy."""
    path = tmp_path / "plain.gutil"
    path.write_text("# gpu   pwr    sm\n# Idx     W     %\n    0   294    98\n    0   296     -\n")
    (row,) = gpus(path)
    assert (row["power_w"]["mean"], row["sm_pct"]["mean"], row["energy_j"]) == (295, 98, None)
    assert (row["hours"], row["idle_min"], row["first"]) == (None, None, None)


def test_samples_that_were_never_written_are_added_up(written: Written) -> None:
    """Each `## lost:` line counts what a full disk cost since the one before."""
    lost = (("lost", "3 samples could not be written"), ("lost", "1 sample could not be written"))
    path = written(2, head=(*lost, ("lost", "track")))
    done = run(path)
    assert f"{path}: 4 samples could not be written by its recorder\n" in done.stdout
    (file,) = json.loads(run("--json", path).stdout)["files"]
    assert file["num_lost"] == 4
