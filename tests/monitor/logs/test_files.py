"""Which files are logs, and which of them are one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from monitor.errors import UserError
from monitor.live import target
from monitor.live.fleet import Fleet
from monitor.logs import files, gutil, series

HEAD = (
    "#Date        Time         gpu    pwr     sm \n#YYYYMMDD    HH:MM:SS     Idx      W      % \n"
)


def log(path: Path, *seconds: int) -> Path:
    """A log of one GPU whose power is the second."""
    rows = "".join(f" 20261121    12:00:{s:02}       0 {s:>6}      7 \n" for s in seconds)
    path.write_text(HEAD + gutil.comment("utc_offset", "+00:00") + rows)
    return path


@pytest.fixture
def rotated(tmp_path: Path) -> Path:
    """Two nodes' logs, of which one was rotated twice, another job's, and what is no log."""
    for name, seconds in (
        ("slurm-7.n1.gutil", (5, 6)),
        ("slurm-7.n1.gutil.1", (3, 4)),
        ("slurm-7.n1.gutil.10", (1, 2)),
        ("slurm-7.n2.gutil", (1, 6)),
        ("slurm-8.n1.gutil.2", (9,)),
    ):
        log(tmp_path / name, *seconds)
    for name in ("slurm-7.n1.gutil.0", "slurm-7.n1.gutil.bak", "slurm-7.n1.gutil.1.gz", "gutil.1"):
        (tmp_path / name).write_text("no log")
    return tmp_path


def names(logs: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Without their folder."""
    return [tuple(os.path.basename(file) for file in log) for log in logs]  # noqa: PTH119


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("out/slurm-7.n1.gutil", ("7", "n1")),
        ("slurm-7_3.gpu-1.site.org.gutil.12", ("7_3", "gpu-1.site.org")),
        ("/tmp/slurm-7.n1.gutil.csv", ("7", "n1.gutil")),
        ("dmon.log", (None, "dmon")),
        ("dmon.gutil.3", (None, "dmon")),
        ("slurm-7.gutil", (None, "slurm-7")),
    ],
)
def test_a_name_tells_job_and_node(path: str, place: tuple[str | None, str]) -> None:
    """Of a log that was rotated away as well."""
    assert files.named(path) == place


def test_what_was_rotated_away_belongs_to_its_log(rotated: Path) -> None:
    """The oldest first; a log that is not there now is still one; no file twice."""
    whole = ("slurm-7.n1.gutil.10", "slurm-7.n1.gutil.1", "slurm-7.n1.gutil")
    of_job_7 = [whole, ("slurm-7.n2.gutil",)]
    assert names(files.find([str(rotated)])) == [*of_job_7, ("slurm-8.n1.gutil.2",)]
    assert [Path(p).name for p in files.in_folder(str(rotated), ["8"])] == ["slurm-8.n1.gutil"]
    current, old = rotated / "slurm-7.n1.gutil", rotated / "slurm-7.n1.gutil.1"
    assert names(files.find([str(current), str(old), str(rotated / "x/../x"), str(old)])) == [
        whole,
        ("x",),
    ]
    assert names(files.find([str(old), str(current)])) == [(old.name,), (whole[0], whole[2])]


def test_what_was_compressed_when_it_was_rotated_away_is_missed(
    rotated: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As by logrotate: hours that a report lacks are named; what is no log's stays unnamed."""
    current = rotated / "slurm-7.n1.gutil"
    for name in ("slurm-7.n1.gutil.11.gz", "slurm-7.n1.gutil.12.xz", "slurm-9.n9.gutil.1.gz"):
        (rotated / name).write_bytes(b"")
    for path in (rotated, current):
        found = names(files.find([str(path)]))
        assert ("slurm-7.n1.gutil.10", "slurm-7.n1.gutil.1", current.name) in found
        text = f"left out {current}.12.xz (and 2 more files): it is compressed, unpack it first"
        assert capfd.readouterr().err == f"monitor: {text}\n"
    assert "slurm-9.n9.gutil" not in [Path(path).name for path in files.in_folder(str(rotated))]


def test_a_name_without_a_folder_is_found_here(
    rotated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a user in the folder names it."""
    monkeypatch.chdir(rotated)
    assert files.find(["slurm-7.n1.gutil"])[0][1] == "slurm-7.n1.gutil.1"


def test_a_folder_without_logs_is_named(tmp_path: Path) -> None:
    """Empty, or not to be read."""
    with pytest.raises(UserError, match=r"must hold \.gutil files; found none in"):
        files.find([str(tmp_path)])
    with pytest.raises(OSError, match="No such file"):
        files.in_folder(str(tmp_path / "none"))


def monitor(*words: str) -> str:
    """What a command of the monitor prints."""
    command = [sys.executable, "-m", "monitor", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.slow
def test_report_and_export_read_a_rotated_log_as_one(rotated: Path) -> None:
    """Time runs through all its files: nothing is missing and nothing counts twice."""
    made = json.loads(monitor("report", "--json", str(rotated)))
    seven = [(g["host"], g["num_samples"], g["hours"]) for g in made["gpus"] if g["job"] == "7"]
    assert sorted(seven) == [("n1", 6, 5 / 3600), ("n2", 2, 5 / 3600)]
    assert [(g["host"], g["num_samples"]) for g in made["gpus"] if g["job"] == "8"] == [("n1", 1)]
    rows = monitor("export", "--format", "csv", "--out", "-", str(rotated / "slurm-7.n1.gutil"))
    assert [line.split(",")[5] for line in rows.splitlines()[1:]] == list("123456")


def test_series_read_a_rotated_log_as_one(rotated: Path) -> None:
    """What plot, html and diagnose read, by folder or by run directory."""
    run_dir = rotated / "slurm-7"
    run_dir.mkdir()
    (run_dir / "events.jsonl").write_text("")
    for path in (rotated, run_dir):
        run = series.load([str(path)])
        (gpu,) = (gpu for gpu in run.gpus if (gpu.job, gpu.host) == ("7", "n1"))
        assert gpu.values["pwr"].tolist() == [1, 2, 3, 4, 5, 6]


def test_watch_has_a_row_for_a_rotated_log_not_for_its_files(rotated: Path) -> None:
    """It follows the one that grows."""
    fleet = Fleet(target.Target(folder=str(rotated), job="7"))
    fleet.poll()
    assert [(log.host, log.num_unreadable) for log in fleet.logs] == [("n1", 0), ("n2", 0)]
    assert [track.host for log in fleet.logs for track in log.tracks] == ["n1", "n2"]
