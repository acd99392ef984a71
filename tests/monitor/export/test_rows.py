"""`python -m monitor export` of rows: their units, names and times, in each form."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from monitor.export import rows as export_rows
from monitor.logs import columns, reader
from tests.monitor.export.test_export import export

pytestmark = pytest.mark.slow

Log = Callable[..., Path]


def test_rows_have_units_utc_times_and_nulls(log: Log, tmp_path: Path) -> None:
    """A column that a log lacks is null in its rows; whole numbers stay whole."""
    first = log("slurm-7.n1.gutil", offset="+02:00")
    second = log("slurm-7.n2.gutil", "pumth")
    out = tmp_path / "rows.parquet"
    assert export("parquet", out, first, second) == 0
    rows = pl.read_parquet(out)
    assert rows.height == 12
    assert rows.columns[:6] == ["time_utc", "job", "node", "gpu", "uuid", "power_w"]
    assert rows.schema["time_utc"] == pl.Datetime("ms", "UTC")
    assert rows["node"].to_list() == ["n1"] * 6 + ["n2"] * 6
    assert rows["uuid"].to_list() == [None, "GPU-bb"] * 6
    assert rows["power_w"].to_list() == [100, None, 101, None, 102, None] * 2
    assert rows["energy_j"].to_list()[::2] == [10**11, 10**11 + 1, 10**11 + 2, *[None] * 3]
    assert rows["host_mem_used_mib"].to_list() == [None] * 6 + [2048] * 6
    (shift,) = set(rows["time_utc"][6:].dt.epoch("s") - rows["time_utc"][:6].dt.epoch("s"))
    assert 7200 <= shift <= 7210


@pytest.mark.parametrize("much", [False, True])
def test_parquet_csv_and_json_lines_say_the_same(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, much: bool
) -> None:
    """Also where there is so much that it goes over the disk; nothing of that is left."""
    if much:
        monkeypatch.setattr(export_rows, "_MUCH_BYTES", 0)
    paths = [log("in/slurm-7.n1.gutil"), log("in/slurm-7.n2.gutil", "pumthj")]
    folder = tmp_path / "out"
    folder.mkdir()
    for form in ("parquet", "csv", "jsonl"):
        assert export(form, folder / form, tmp_path / "in") == 0
    assert sorted(p.name for p in folder.iterdir()) == ["csv", "jsonl", "parquet"]
    rows = pl.read_parquet(folder / "parquet")
    tables = [export_rows.table(reader.read(str(path))) for path in paths]
    assert_frame_equal(rows, pl.concat(tables, how="diagonal_relaxed"))
    as_text = rows.with_columns(pl.col("time_utc").dt.strftime("%Y-%m-%dT%H:%M:%SZ"))
    lines = [json.loads(line) for line in (folder / "jsonl").read_text().splitlines()]
    assert lines == as_text.to_dicts()
    schema = as_text.schema
    assert_frame_equal(pl.read_csv(folder / "csv", schema=schema), as_text)


def test_every_column_of_the_recorder_has_a_name(tmp_path: Path) -> None:
    """With its unit; what dmon has in another unit is so called only where we wrote it."""
    names = {**export_rows.NAMES, **export_rows.OUR_NAMES}
    assert {column.name for column in columns.COLUMNS} <= set(names)
    assert len(set(names.values())) == len(names)
    path = tmp_path / "a.gutil"
    path.write_text("# gpu pviol   dram tviol\n    0     1      1     1\n")
    names_of_dmon = ["power_throttled_pct", "dram_active_pct", "tviol"]
    assert export_rows.table(reader.read(str(path))).columns[-3:] == names_of_dmon
    path.write_text(f"{path.read_text()}## monitor: 1\n")
    assert export_rows.table(reader.read(str(path))).columns[-1] == "heat_throttled_pct"


def test_true_dmon_logs_of_all_series_are_one_table(data: Path, tmp_path: Path) -> None:
    """Different columns join; local times become UTC by this machine's zone."""
    out = tmp_path / "rows.parquet"
    environment = {**os.environ, "TZ": "Asia/Kolkata"}
    command = [sys.executable, "-m", "monitor", "export", "--format", "parquet"]
    done = subprocess.run(
        [*command, "--out", out, data],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "1 row could not be read" in done.stderr
    rows = pl.read_parquet(out)
    assert rows["node"].n_unique() == 5
    one = rows.filter(pl.col("node") == "pumt_DT.525.147.05.2gpu")
    assert str(one["time_utc"][0]) == "2026-11-20 21:56:31+00:00"  # 03:26:31 there
    assert one["protected_used_mib"].null_count() == one.height


def test_rows_without_dates_have_no_time_and_unknown_columns_keep_their_names(
    tmp_path: Path,
) -> None:
    """Nothing is guessed; an empty log adds nothing."""
    (tmp_path / "plain.gutil").write_text(
        "# gpu   pwr    xyz\n    0   294     98\n    -     -      -\n"
    )
    (tmp_path / "void.gutil").write_text("")
    out = tmp_path / "rows.parquet"
    assert export("parquet", out, tmp_path) == 0
    (first, second) = pl.read_parquet(out).to_dicts()
    assert first == {
        **dict.fromkeys(("time_utc", "job", "uuid")),
        "node": "plain",
        "gpu": 0,
        "power_w": 294,
        "xyz": 98,
    }
    assert set(second.values()) == {None, "plain"}


def test_rows_of_a_run_are_those_of_all_its_jobs(log: Log, tmp_path: Path) -> None:
    """Each continued the one before."""
    run = tmp_path / "mine"
    run.mkdir()
    lines = [f'{{"event": "start", "job_id": "{job}"}}\n' for job in (100, 101)]
    (run / "events.jsonl").write_text("".join(lines))
    for name in ("slurm-100.n1.gutil", "slurm-101.n1.gutil", "slurm-102.n1.gutil"):
        log(name)
    assert export("csv", tmp_path / "x.csv", run) == 0
    jobs = pl.read_csv(tmp_path / "x.csv")["job"].unique().to_list()
    assert sorted(jobs) == [100, 101]
