import json
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from monitor import __version__
from monitor.errors import UserError
from monitor.logs import files as logfiles
from monitor.logs import frame, gutil, stats, tallies
from monitor.logs.sample import GpuSample, HostSample, Row
from monitor.report import document, report, words

NOON = datetime(2026, 11, 21, 12)  # noqa: DTZ001
Written = Callable[..., Path]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Write a log of ours: `gpu(cycle, index)` every `step_s`; no GPUs where `num_gpus` is 0."""

    def write(  # noqa: PLR0913 - each has its default
        num_cycles: int,
        gpu: Callable[[int, int], dict[str, Any]] = lambda _c, _i: {},
        *,
        num_gpus: int = 1,
        step_s: float = 10,
        letters: str = "pumtjh",
        name: str = "slurm-7.n1.gutil",
        head: tuple[tuple[str, str], ...] = (),
    ) -> Path:
        layout = gutil.Layout(letters)
        text = layout.header() + "".join(gutil.comment(*fact) for fact in head)
        for cycle in range(num_cycles):
            time = NOON + timedelta(seconds=cycle * step_s)
            samples = [GpuSample(index=i, **gpu(cycle, i)) for i in range(num_gpus)]
            rows = [Row(time, s, HostSample(40, 2048)) for s in samples or [GpuSample()]]
            text += layout.block(rows, cycle * max(1, num_gpus))
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def gpus(*paths: Path) -> list[dict[str, Any]]:
    """What the report tells of each GPU, by node and index."""
    nodes, files = tallies.count([[str(path)] for path in paths])
    told = document.document(stats.join(nodes), files, None)["gpus"]
    for gpu in told:
        gpu["span_s"] = gpu["hours"] and gpu["hours"] * 3600
        gpu["energy_j"] = gpu["energy_kwh"] and round(gpu["energy_kwh"] * 3.6e6, 6)
    return sorted(told, key=lambda gpu: (gpu["host"], gpu["gpu"]))


def run(*options: object) -> "subprocess.CompletedProcess[str]":
    """Run the `report` command."""
    command = [sys.executable, "-m", "monitor", "report", *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("series", ["418.226.00", "525.147.05", "550.163.01"])
def test_true_dmon_logs_of_every_series(data: Path, series: str) -> None:
    """Each gives the same numbers by its own layout."""
    first, second = gpus(data / f"pumt_DT.{series}.2gpu.gutil")
    for row, index in ((first, 0), (second, 1)):
        assert (row["gpu"], row["num_samples"], row["span_s"]) == (index, 2, 1)
        assert (
            row["power_w"]["mean"],
            row["fb_used_mib"]["peak"],
            row["pcie_tx_mb_s"]["mean"],
        ) == (294, 71680, 9)
        assert (row["busy_pct"], row["energy_j"], row["energy_from"]) == (100, 294, "power")


def test_readings_that_do_not_exist_are_no_zeros(data: Path) -> None:
    """All missing: no mean, no peak, no energy; a lost GPU's mean is that of what it told."""
    (row, _) = gpus(data / "pumt_DT.525.147.05.allmissing.gutil")
    for name in ("power_w", "sm_pct", "busy_pct", "energy_j"):
        assert row[name] is None
    assert row["num_silent"] == 1
    whole, lost = gpus(data / "pumt_DT.550.163.01.gpu1_lost.gutil")
    assert (lost["num_samples"], lost["num_silent"], whole["num_silent"]) == (5, 3, 0)
    assert (lost["power_w"]["mean"], lost["sm_pct"]["num"]) == (294, 2)
    assert (whole["energy_j"], lost["energy_j"]) == (4 * 294, 294)


def test_means_peaks_and_busy_share(written: Written) -> None:
    """Busy is sm above 5 %, of the samples that have an sm."""
    sm = [None, 0, 5, 6, 100]
    path = written(5, lambda c, _i: {"sm_pct": sm[c], "power_w": 100 * c, "temp_c": 50 - c})
    (row,) = gpus(path)
    assert (row["sm_pct"]["mean"], row["sm_pct"]["peak"]) == (111 / 4, 100)
    assert row["busy_pct"] == 50
    assert (row["power_w"]["mean"], row["power_w"]["peak"], row["temp_c"]["peak"]) == (200, 400, 50)


def test_energy_comes_from_the_counter_where_there_is_one(written: Written) -> None:
    """The counter's growth, past a reset of it; power says something else and is not used."""
    counter = [20_000_000, 20_000_700, 20_000_801, 5, 25]
    path = written(5, lambda c, _i: {"energy_j": counter[c], "power_w": 1})
    (row,) = gpus(path)
    assert (row["energy_j"], row["energy_from"]) == (700 + 101 + 20, "counter")


def test_energy_is_else_power_over_time(written: Written) -> None:
    """Trapezoids between samples 10 s apart."""
    (row,) = gpus(written(3, lambda c, _i: {"power_w": (100, 200, 200)[c]}))
    assert (row["energy_j"], row["energy_from"]) == (150 * 10 + 200 * 10, "power")


def test_a_gap_between_attempts_is_no_running_time(written: Written, tmp_path: Path) -> None:
    """An hour in which nothing was recorded adds neither time nor energy."""
    text = written(4, lambda _c, _i: {"power_w": 100}).read_text()
    path = tmp_path / "two.gutil"
    path.write_text(text + text.replace(" 12:00:", " 13:00:").replace("    12:", "    13:"))
    (row,) = gpus(path)
    assert (row["num_samples"], row["span_s"], row["energy_j"]) == (8, 60, 6000)


def test_looks_closer_than_a_second_still_add_up(written: Written) -> None:
    """The log cuts times to seconds; the time between the first and last sample stays."""
    (row,) = gpus(written(31, lambda _c, _i: {"power_w": 10}, step_s=0.2))
    assert row["span_s"] == 6


def test_percentiles_are_values_that_occurred(written: Written) -> None:
    """The first value that reaches its share of the samples, whether counted or sorted."""
    (row,) = gpus(
        written(100, lambda c, _i: {"sm_pct": c + 1, "fb_used_mib": 1000 * (c + 1), "temp_c": 7})
    )
    spread = {"num": 100, "mean": 50.5, "p5": 5, "p50": 50, "p95": 95, "peak": 100}
    assert row["sm_pct"] == spread
    assert row["fb_used_mib"] == {k: v if k == "num" else 1000 * v for k, v in spread.items()}
    assert {*row["temp_c"].values()} == {100, 7}


def test_idle_time_and_its_longest_stretch(written: Written) -> None:
    """A sample speaks for the time since the one before; a busy or silent one ends a stretch."""
    sm = [0, 0, 0, 90, 0, 0, 0, 0, None, 0, 90]
    (row,) = gpus(written(11, lambda c, _i: {"sm_pct": sm[c]}, step_s=60))
    assert row["idle_min"] == 7
    assert row["longest_idle"] == {"minutes": 4, "begin": "2026-11-21 12:03:00"}
    assert row["hours"] * 60 == 10
    (row,) = gpus(written(3, lambda _c, _i: {"sm_pct": 90}))
    assert (row["idle_min"], row["longest_idle"]) == (0, None)


def test_a_job_has_its_nodes_and_two_jobs_on_a_node_stay_apart(written: Written) -> None:
    """By the `## job:` line, else by the log's name; energies add, percentiles pool."""
    one = written(3, lambda _c, _i: {"power_w": 100}, num_gpus=2)
    two = written(2, lambda _c, _i: {"power_w": 400, "energy_j": 5}, name="slurm-8.n1.gutil")
    other = written(2, name="x.gutil", head=(("host", "n2"), ("job", "8")))
    nodes, files = tallies.count([[str(path)] for path in (one, two, other)])
    made = document.document(stats.join(nodes), files, 500)
    assert [(j["job"], j["num_nodes"], j["num_gpus"]) for j in made["jobs"]] == [
        ("7", 1, 2),
        ("8", 2, 2),
    ]
    assert made["jobs"][0]["energy_kwh"] == pytest.approx(2 * 2000 / 3.6e6)
    assert made["jobs"][0]["co2_g"] == pytest.approx(500 * 2 * 2000 / 3.6e6)
    assert made["jobs"][0]["power_w"]["num"] == 6
    assert [j["energy_from"] for j in made["jobs"]] == ["power", "counter"]


def test_the_logs_of_one_node_and_job_are_one(written: Written, tmp_path: Path) -> None:
    """Rotated, or a copy under another name: time runs through both; a file twice counts once."""
    first = written(8, lambda c, _i: {"sm_pct": c, "power_w": 100})
    text = first.read_text().splitlines(keepends=True)
    (tmp_path / "slurm-7.n1.1.gutil").write_text("".join(text[:6]))
    name = gutil.comment("host", "n1")
    (tmp_path / "slurm-7.n2.gutil").write_text("".join(text[:2]) + name + "".join(text[6:]))
    (tmp_path / "slurm-7.n1.1.gutil").write_text("".join(text[:2]) + name + "".join(text[2:6]))
    (whole,) = gpus(first)
    (parts,) = gpus(tmp_path / "slurm-7.n2.gutil", tmp_path / "slurm-7.n1.1.gutil")
    assert parts == whole
    assert logfiles.find([str(first), str(first)]) == [(str(first),)]


def test_processes_count_as_one_does(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared between processes, the numbers are the same, and a missing file is one line."""
    paths = [
        written(9, lambda c, i: {"sm_pct": c * i}, num_gpus=4, name=f"slurm-7.n{n}.gutil")
        for n in range(3)
    ]
    alone = gpus(*paths)
    monkeypatch.setattr(tallies, "_WORTH_BYTES", 0)
    assert gpus(*paths) == alone
    with pytest.raises(UserError, match=r"none\.gutil"):
        gpus(*paths, paths[0].with_name("none.gutil"))


def test_host_and_offset_come_from_the_log_itself(written: Written) -> None:
    """Its own lines win over its name, and times become UTC."""
    path = written(2, head=(("host", "gpu-7"), ("utc_offset", "+02:00")))
    log = frame.load(str(path))
    assert log.rows["host"].to_list() == ["gpu-7"] * 2
    assert log.rows["time"][0] == NOON - timedelta(hours=2)
    assert log.facts["utc_offset"] == "+02:00"
    odd = written(1, head=(("utc_offset", "-03:30"), ("utc_offset", "soon")))
    assert frame.load(str(odd)).rows["time"][0] == NOON


def test_the_offset_may_change_within_a_log(written: Written) -> None:
    """Rows before and after the end of summer time each have their own offset."""
    path = written(2, head=(("utc_offset", "+02:00"),))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:-1], "## utc_offset: +01:00\n", lines[-1]]))
    first, second = frame.load(str(path)).rows["time"]
    assert second - first == timedelta(hours=1, seconds=10)


def test_torn_and_foreign_lines_are_counted(data: Path, tmp_path: Path) -> None:
    """What cannot be read is counted and told; the rest is there."""
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
    log = frame.load(str(path))
    assert (log.rows.height, log.num_unreadable, log.torn) == (7, 4, True)
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
    log = frame.load(str(path))
    assert (log.rows["fb"].to_list(), log.num_unreadable) == ([71680, 143771, 71680], 1)


def test_columns_that_change_within_a_file(written: Written, tmp_path: Path) -> None:
    """A log carried on with other columns, or by another driver, has them all."""
    one, two = written(2, letters="pumt").read_text(), written(2).read_text()
    path = tmp_path / "both.gutil"
    path.write_text(one + two)
    rows = frame.load(str(path)).rows
    assert rows.height == 4
    assert rows["hmem"].to_list() == [None, None, 2048, 2048]


def test_windows_line_ends_and_an_empty_file(data: Path, tmp_path: Path) -> None:
    """A copied log reads the same; an empty one has no rows and says so."""
    text = (data / "pumt_DT.550.163.01.2gpu.gutil").read_text()
    path = tmp_path / "crlf.gutil"
    path.write_bytes(text.replace("\n", "\r\n").encode())
    assert frame.load(str(path)).rows.height == 4
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
    log = frame.load(str(path))
    assert (log.rows.height, log.num_unreadable) == (3, 1)


def test_logs_without_dates_are_read(tmp_path: Path) -> None:
    """Written without `-o DT` they have no times: means, but no energy."""
    path = tmp_path / "plain.gutil"
    path.write_text("# gpu   pwr    sm\n# Idx     W     %\n    0   294    98\n    0   296     -\n")
    (row,) = gpus(path)
    assert (row["power_w"]["mean"], row["sm_pct"]["mean"], row["energy_j"]) == (295, 98, None)
    assert (row["hours"], row["idle_min"], row["first"]) == (None, None, None)


def lines_of(text: str) -> list[str]:
    """Printed lines, blanks squeezed."""
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_tables_name_nodes_gpus_and_rules(data: Path) -> None:
    """What a person sees: the job, a row per GPU, the rules below, and what was left out."""
    done = run(data / "pumt_DT.550.163.01.gpu1_lost.gutil")
    assert (done.returncode, done.stderr) == (0, "")
    lines = lines_of(done.stdout)
    name = "pumt_DT.550.163.01.gpu1_lost"
    assert lines[0] == "no job: 1 node, 2 GPUs, 4 s, ~1.5 kJ"
    assert lines[1] == f"100 % busy; node {name} GPU 1 silent in 3 of 5 samples; memory peak 60 GiB"
    assert "memory GiB 60.0 60.0 60.0 60.0 60.0" in lines
    rows = [line for line in lines if line.startswith(f"{name} ")]
    assert rows == [
        f"{name} 1 100 98/98/98 60.0/60.0 294/294 61 0s ~294 J",
        f"{name} 0 100 98/98/98 60.0/60.0 294/294 61 0s ~1.2 kJ",
    ]
    assert "busy: share of samples with sm above 5 %" in done.stdout
    assert "1 row could not be read" in done.stdout


def test_a_node_without_a_gpu_has_its_host(written: Written) -> None:
    """No GPU table; processor and memory of the node."""
    done = run(written(3, num_gpus=0).parent)
    lines = lines_of(done.stdout)
    assert lines[:2] == ["job 7: 1 node, 0 GPUs, 20 s", "no GPU was seen"]
    assert "host CPU % 40 40 40 40 40" in lines
    assert "host memory GiB 2.0 2.0 2.0 2.0 2.0" in lines


@pytest.mark.slow
def test_json_is_for_programs(written: Written, data: Path) -> None:
    """The same numbers under their names, with files and rules."""
    path = written(3, lambda _c, _i: {"energy_j": 7_200_000 * _c})
    words = ("--json", "--co2", 100, path, data / "pumt_DT.550.163.01.gpu1_lost.gutil")
    made = json.loads(run(*words).stdout)
    assert [gpu["gpu"] for gpu in made["gpus"]] == [1, 0, 0]  # the lost one is worst
    first = made["jobs"][1]
    assert (first["job"], first["energy_from"], first["energy_kwh"]) == ("7", "counter", 4)
    assert (first["co2_g"], made["co2_g_per_kwh"]) == (400, 100)
    assert first["cpu_pct"]["mean"] == made["nodes"][1]["cpu_pct"]["mean"] == 40
    assert made["files"][1]["num_unreadable"] == 1
    assert "busy" in made["rules"]
    assert "4.00 kWh, 400 g CO2" in run("--co2", "100", path).stdout
    assert "CO2" not in run(path).stdout


def test_full_tells_all_of_every_gpu(written: Written) -> None:
    """Each GPU with every spread there is."""
    done = run("--full", written(5, lambda c, i: {"sm_pct": 20 * c + i}, num_gpus=2))
    lines = lines_of(done.stdout)
    assert "node n1 GPU 1: 80 % busy, idle 0 s, -" in lines
    assert "utilisation % 41 1 41 81 81" in lines


def heads(path: Path) -> str:
    """The headline of a log."""
    nodes, files = tallies.count([[str(path)]])
    return str(document.document(stats.join(nodes), files, None)["jobs"][0]["headline"])


def test_the_headline_says_what_matters(written: Written) -> None:
    """Busy share, the longest idle time, and whether the memory would take more."""

    def gpu(cycle: int, index: int) -> dict[str, Any]:
        idle = index == 3 and cycle >= 59
        return {"sm_pct": 0 if idle else 95, "fb_used_mib": 38 * 1024}

    total = (("host", "gpu007"), *((f"memory_mib {i}", "81559") for i in range(4)))
    assert heads(written(100, gpu, num_gpus=4, step_s=60, head=total)) == (
        "90 % busy; node gpu007 GPU 3 idle for 41 min;"
        " memory peak 38 of 80 GiB: the batch could be larger"
    )
    full = written(2, lambda *_: {"sm_pct": 99, "fb_used_mib": 81_000}, head=total)
    assert heads(full) == "100 % busy; memory peak 79 of 80 GiB: nearly full"
    untold = written(2, lambda *_: {"fb_used_mib": 38 * 1024})
    assert heads(untold) == "nothing tells how busy it was; memory peak 38 GiB"
    several = written(9, lambda *_: {"sm_pct": 0}, num_gpus=3, step_s=60)
    assert heads(several) == "0 % busy; node n1 GPU 0 idle for 8 min (and 2 more GPUs)"


def cluster(written: Written, num_nodes: int, busy: Callable[[int, int], int]) -> Path:
    """Logs of a job, each of 2 GPUs that are busy in so many of 100 samples."""
    for number in range(1, num_nodes + 1):
        path = written(
            100,
            lambda c, i, n=number: {"sm_pct": 90 * (c < busy(n, i)), "power_w": 100},
            num_gpus=2,
            letters="pumt",
            name=f"slurm-7.gpu{number:03}.gutil",
        )
    return path.parent


@pytest.mark.slow
def test_nodes_that_are_alike_are_one_line(written: Written) -> None:
    """Worst first; a GPU that stands out is named; all fits on a screen."""
    folder = cluster(written, 40, lambda n, i: 20 if (n, i) == (7, 1) else 92 + n % 3)
    lines = lines_of(run(folder).stdout)
    assert any(line.startswith("gpu007 2 56 ") for line in lines)
    assert any(line.startswith("gpu[001-006,008-040] 2 92-94 ") for line in lines)
    folder = cluster(written, 40, lambda n, _i: 92 if n % 3 else 40)
    assert any(
        line.startswith("27 of gpu001-gpu040 2 92 ") for line in lines_of(run(folder).stdout)
    )
    assert any(line.startswith("gpu007 1 20 ") for line in lines)
    assert not any(line.startswith("gpu007 0 ") for line in lines)
    assert len(lines) < 30


@pytest.mark.slow
def test_nodes_of_all_kinds_still_fit_on_a_screen(written: Written) -> None:
    """The narrower the bands, the more lines: as narrow as ten lines allow."""
    folder = cluster(written, 50, lambda n, _i: 2 * n)
    lines = lines_of(run(folder).stdout)
    rows = [line for line in lines if line.startswith("gpu[")]
    assert 4 < len(rows) <= 10
    assert len(lines) < 40


@pytest.mark.parametrize("width", [80, 132])
def test_no_line_is_wider_than_the_terminal(
    written: Written,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    width: int,
) -> None:
    """In 80 columns and in 132, with all columns, a long name and the hugest numbers."""
    huge = {
        "sm_pct": 100,
        "power_w": 1400,
        "temp_c": 105,
        "fb_used_mib": 196_608,
        "energy_j": 10**11,
        "sm_clock_mhz": 2619,
        "sm_active_pct": 100,
        "tensor_active_pct": 100,
    }
    path = written(
        300,
        lambda c, _i: {**huge, "sm_pct": 100 * (c > 200), "energy_j": c * 10**9},
        letters="pumtcjrgh",
        step_s=600,
        name="slurm-123456_7.dgx-a100-0123.gutil",
    )
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    report.report([str(path)])
    text = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text
    assert ("tensor %" in text) == (width == 132)


@pytest.mark.slow
def test_many_jobs_are_a_line_each(written: Written) -> None:
    """The worst first, and the way to see more."""
    for number in range(5):
        path = written(
            10, lambda c, _i, n=number: {"sm_pct": 90 * (c < n)}, name=f"slurm-{number}.n.gutil"
        )
    lines = lines_of(run(path.parent).stdout)
    assert [line.split()[0] for line in lines if line[:1].isdigit()] == ["0", "1", "2", "3", "4"]
    assert any("name its logs" in line for line in lines)
    assert "job 3: 1 node" in run("--full", path.parent).stdout


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ([], ""),
        (["n1"], "n1"),
        (["n2", "n1", "n1"], "n[1-2]"),
        (["gpu001", "gpu003", "gpu002", "gpu010", "login"], "gpu[001-003,010],login"),
        (["n9", "n10", "n11"], "n9,n[10-11]"),
        (["a-1-x", "b"], "a-1-x,b"),
        (["7", "8"], "[7-8]"),
    ],
)
def test_names_fold_as_slurm_folds_them(names: list[str], folded: str) -> None:
    """Numbers of one width under one stem."""
    assert words.host_list(names) == folded


@pytest.mark.parametrize(
    "paths",
    [
        ["none.gutil"],
        [],
        ["--colour", "x"],
        ["/root/.."],
        ["--co2", "-1", "x"],
        ["--co2", "nan", "x"],
        ["--co2", "green", "x"],
    ],
)
def test_wrong_input_is_one_line_and_64(paths: list[str], tmp_path: Path) -> None:
    """A missing file, no file, an unknown option, a directory without logs."""
    done = run(*[str(tmp_path) if path == "/root/.." else path for path in paths])
    assert done.returncode == 64
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_a_reader_that_goes_away_is_no_error(written: Written) -> None:
    """`report … | head -n 0` ends quietly."""
    command = f"{sys.executable} -m monitor report {written(3)}"
    done = subprocess.run(
        ["bash", "-c", f"({command}; echo $? >&2) | true"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.split() == ["0"]


def test_help_and_version() -> None:
    """--help names each subcommand; the version is the package's."""
    done = subprocess.run(
        [sys.executable, "-m", "monitor", "--help"], capture_output=True, text=True, check=True
    )
    assert all(word in done.stdout for word in ("record", "report", "compose"))
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f'version = "{__version__}"' in project


def test_a_directory_without_logs_is_named(tmp_path: Path) -> None:
    """The error says what was looked for, and where."""
    with pytest.raises(UserError, match=r"\.gutil files; found none in"):
        report.report([str(tmp_path)])
