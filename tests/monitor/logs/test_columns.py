"""A column is described once: an entry in the registry, and its reading; all commands have it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from monitor.logs import columns

WITH_FAN = """
import sys
from monitor.logs import columns

columns.COLUMNS += (
    columns.Column(
        letter="z", name="fan", unit="%", field="fan_pct", nvml="nvmlDeviceGetFanSpeed",
        metric="fan_ratio", help="Speed of the fan.", label="fan %",
        panel=columns.Panel("fan", "fan", top=100), live=columns.Live("fan", 4, 2),
    ),
)
if sys.argv[1] == "record":
    from monitor.nvml import gpu

    gpu._OFTEN["z"] = gpu._named(gpu.Number("fan_pct"))

from monitor.cli import main

sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def log(driver: Any, bench: Any, until: Any, tmp_path: Path) -> Path:
    """A log of a recorder that has another column, under a driver that has it."""
    driver.does("gpus 2", "set fan 0 42", "set fan 1 58")
    out = tmp_path / "slurm-7.n1.gutil"
    process = subprocess.Popen(
        [sys.executable, "-c", WITH_FAN, "record", "--out", str(out), "--interval", "0.2"],
        env={**os.environ, **driver.env},
    )
    bench.started.append(process)
    until(lambda: out.exists() and out.read_text().count("\n 2") > 4)
    process.terminate()
    assert process.wait(20) == 0
    return out


def shown(*words: object) -> str:
    """What a command prints."""
    command = [sys.executable, "-c", WITH_FAN, *map(str, words)]
    env = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout


@pytest.mark.slow
def test_a_column_of_the_registry_is_everywhere(log: Path, tmp_path: Path) -> None:
    """Recorded under its head, read and reported, exported as metric and as table, drawn, live."""
    names, units, *_ = log.read_text().splitlines()
    assert (names.split()[-1], units.split()[-1]) == ("fan", "%")
    assert "fan %" in shown("report", "--full", log)
    document = json.loads(shown("report", "--json", log))
    assert [gpu["fan_pct"]["mean"] for gpu in document["gpus"]] == [42, 58]
    metrics = shown("export", "--format", "prometheus", "--out", "-", "--max-age", 600, log)
    assert "# HELP ddp_gpu_fan_ratio Speed of the fan." in metrics
    assert [
        line.split()[-1] for line in metrics.splitlines() if line.startswith("ddp_gpu_fan")
    ] == [
        "0.42",
        "0.58",
    ]
    table = tmp_path / "rows.parquet"
    shown("export", "--format", "parquet", "--out", table, log)
    assert pl.read_parquet(table)["fan_pct"].unique().sort().to_list() == [42, 58]
    picture = tmp_path / "run.svg"
    shown("plot", "--show", "fan", "--out", picture, log)
    assert picture.stat().st_size > 0
    live = shown("watch", log)
    assert " fan " in live
    assert "42%" in live


def test_names_are_of_one_column_each() -> None:
    """Heads, fields, names in tables and metrics: none stands for two."""
    for found in (
        [column.name for column in columns.COLUMNS],
        [column.field for column in columns.COLUMNS],
        [column.table_name for column in columns.COLUMNS],
        [(column.of_host, column.metric) for column in columns.COLUMNS if column.metric],
        [column.report_name for column in columns.reported()],
    ):
        assert len(set(found)) == len(found)
