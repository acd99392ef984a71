import json
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monitor import __version__, dmon, frame, gutil, report, stats
from monitor.errors import UserError
from monitor.sample import GpuSample, HostSample, Row

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
    """The statistics of some logs."""
    return stats.gpus([frame.load(str(path)) for path in paths]).to_dicts()


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
        assert (row["pwr_mean"], row["fb_max"], row["txpci_mean"]) == (294, 71680, 9)
        assert (row["busy_pct"], row["energy_j"], row["energy_from"]) == (100, 294, "power")


def test_readings_that_do_not_exist_are_no_zeros(data: Path) -> None:
    """All missing: no mean, no peak, no energy; a lost GPU's mean is that of what it told."""
    (row, _) = gpus(data / "pumt_DT.525.147.05.allmissing.gutil")
    for name in ("pwr_mean", "sm_max", "busy_pct", "energy_j"):
        assert row[name] is None
    whole, lost = gpus(data / "pumt_DT.550.163.01.gpu1_lost.gutil")
    assert (lost["num_samples"], lost["pwr_mean"], lost["sm_count"]) == (5, 294, 2)
    assert (whole["energy_j"], lost["energy_j"]) == (4 * 294, 294)


def test_means_peaks_and_busy_share(written: Written) -> None:
    """Busy is sm above 5 %, of the samples that have an sm."""
    sm = [None, 0, 5, 6, 100]
    path = written(5, lambda c, _i: {"sm_pct": sm[c], "power_w": 100 * c, "temp_c": 50 - c})
    (row,) = gpus(path)
    assert (row["sm_mean"], row["sm_max"]) == (111 / 4, 100)
    assert row["busy_pct"] == 50
    assert (row["pwr_mean"], row["pwr_max"], row["gtemp_max"]) == (200, 400, 50)
    assert row["cpu_mean"] == 40


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


def test_several_logs_join_by_node_and_gpu(written: Written) -> None:
    """Two jobs on one node make one row a GPU; means weigh by samples; energies add."""
    one = written(3, lambda _c, _i: {"power_w": 100}, num_gpus=2)
    two = written(2, lambda _c, _i: {"power_w": 400, "energy_j": 5}, name="slurm-8.n1.gutil")
    other = written(2, name="slurm-8.n2.gutil")
    rows = gpus(one, two, other)
    assert [(r["host"], r["gpu"]) for r in rows] == [("n1", 0), ("n1", 1), ("n2", 0)]
    assert rows[0]["pwr_mean"] == pytest.approx(1100 / 5)
    assert (rows[0]["energy_j"], rows[0]["energy_from"]) == (2000, "counter+power")


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
    """Touching cells, and a value so wide that it moves its row, among ordinary rows."""
    text = (data / "pumt_DT.418.226.00.2gpu.gutil").read_text()
    lines = text.splitlines(keepends=True)
    lines[3] = lines[3].replace(" 71680", "143771")
    lines[4] = lines[4].replace(" 71680", " 1143771")
    path = tmp_path / "wide.gutil"
    path.write_text("".join(lines))
    assert frame.load(str(path)).rows["fb"].to_list() == [71680, 143771, 1143771, 71680]


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
    assert (row["pwr_mean"], row["sm_mean"], row["energy_j"]) == (295, 98, None)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.text(max_size=140), max_size=6), st.data())
def test_both_ways_of_reading_agree(tmp_path: Path, garbage: list[str], data: Any) -> None:
    """Cutting whole columns gives what reading row by row gives, whatever lies in between."""
    samples = Path(__file__).parent / "data"
    source = data.draw(st.sampled_from(sorted(samples.glob("*.gutil"))))
    lines = source.read_text().split("\n")
    for line in garbage:
        place = data.draw(st.integers(0, len(lines)))
        lines.insert(place, line.encode("utf-8", "replace").decode().replace("\r", " "))
    text = "\n".join(lines)
    path = tmp_path / "log.gutil"
    path.write_bytes(text.encode())
    log = frame.load(str(path))
    slow = list(dmon.parse(text))
    assert log.num_unreadable == slow.count(None)
    cells = [found[1] for found in slow if found]
    assert log.rows.height == len(cells)
    for name in ("pwr", "fb", "txpci"):
        if cells:
            wanted = [dmon.parse_value(row[name]) if name in row else None for row in cells]
            assert log.rows[name].to_list() == wanted


def test_the_table_names_nodes_gpus_and_rules(data: Path) -> None:
    """What a person sees: a row per GPU, the rules below, and what was left out."""
    done = run(data / "pumt_DT.550.163.01.gpu1_lost.gutil")
    assert (done.returncode, done.stderr) == (0, "")
    assert "│   0 │       5 │ 0:00:04 │ 98 / 98 │ 294 / 294 │ 60.0 / 60.0 │     61 │" in done.stdout
    assert "~1.2 kJ" in done.stdout
    assert "busy: share of samples with sm above 5 %" in done.stdout
    assert "1 rows could not be read" in done.stdout


def test_a_node_without_a_gpu_has_its_host_table(written: Written) -> None:
    """No GPU table; processor and memory of the node."""
    written(3, num_gpus=0)
    done = run(written(3, num_gpus=0).parent)
    assert "GPUs: mean" not in done.stdout
    assert "│ n1   │    0 │       3 │ 0:00:20 │ 40 / 40 │  2.0 / 2.0 │" in done.stdout


def test_json_is_for_programs(written: Written, data: Path) -> None:
    """The same numbers under their names, with hosts, files and rules."""
    path = written(3, lambda _c, _i: {"energy_j": 7_200_000 * _c})
    made = json.loads(run("--json", path, data / "pumt_DT.550.163.01.gpu1_lost.gutil").stdout)
    first = made["gpus"][0]
    assert (first["host"], first["gpu"], first["energy_from"]) == ("n1", 0, "counter")
    assert made["hosts"][0]["cpu_mean"] == 40
    assert made["files"][1]["num_unreadable"] == 1
    assert "busy" in made["rules"]
    assert "4.00 kWh" in run(path).stdout


@pytest.mark.parametrize("paths", [["none.gutil"], [], ["--colour", "x"], ["/root/.."]])
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


def test_a_report_on_a_terminal_is_as_wide_as_it(
    written: Written, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a narrow terminal no line is longer than the terminal."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    report.report([str(written(2))])
    assert capsys.readouterr().out
