"""What the report prints: the headline, tables that fit the terminal, and errors of one line."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monitor import __version__, cli
from monitor.logs import aggregates, stats
from monitor.report import document, tables
from monitor.words import host_list
from tests.monitor.reported import Written, gpus, run
from tests.monitor.unread import run_unread


def lines_of(text: str) -> list[str]:
    """Printed lines, blanks squeezed."""
    return [" ".join(line.split()) for line in text.splitlines()]


@pytest.mark.slow
def test_the_tables_name_nodes_gpus_and_rules(data: Path) -> None:
    """What a person sees: the job, a row per GPU, the rules below, and what was left out."""
    done = run(data / "pumt_DT.550.163.01.gpu1_lost.gutil")
    assert (done.returncode, done.stderr) == (0, "")
    lines = lines_of(done.stdout)
    name = "pumt_DT.550.163.01.gpu1_lost"
    assert lines[0] == "no job: 1 node, 2 GPUs, 4 s, >1.5 kJ"
    assert lines[1] == f"100 % busy; node {name} GPU 1 silent in 3 of 5 samples; memory peak 60 GiB"
    assert "memory GiB 60.0 60.0 60.0 60.0 60.0" in lines
    rows = [line for line in lines if line.startswith(f"{name} ")]
    assert rows == [
        f"{name} 1 100 98/98/98 60.0/60.0 294/294 61 0s >294 J",
        f"{name} 0 100 98/98/98 60.0/60.0 294/294 61 0s ~1.2 kJ",
    ]
    assert "busy: share of samples with sm or smavg above 5 % (smact without both)" in done.stdout
    assert "1 row could not be read" in done.stdout


def test_a_node_without_a_gpu_has_its_host(written: Written) -> None:
    """No GPU table, and no rules of one; its processor and memory; the longest of several."""
    done = run(written(3, num_gpus=0).parent)
    lines = lines_of(done.stdout)
    assert "busy:" not in done.stdout
    assert lines[:2] == ["job 7: 1 node, 0 GPUs, 20 s", "no GPU was seen"]
    two = run(written(3, num_gpus=0, name="slurm-7.n2.gutil").parent)
    assert lines_of(two.stdout)[0] == "job 7: 2 nodes, 0 GPUs, 20 s"
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


@pytest.mark.slow
def test_full_tells_all_of_every_gpu(written: Written) -> None:
    """Each GPU with every spread there is."""
    done = run("--full", written(5, lambda c, i: {"sm_pct": 20 * c + i}, num_gpus=2))
    lines = lines_of(done.stdout)
    assert "node n1 GPU 1: 80 % busy, idle 0 s, -" in lines
    assert "utilisation % 41 1 41 81 81" in lines


def heads(path: Path) -> str:
    """The headline of a log."""
    nodes, files = aggregates.count([[str(path)]])
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
    unread = written(2, lambda *_: {"fb_used_mib": 38 * 1024})
    assert heads(unread) == "nothing tells how busy it was; memory peak 38 GiB"
    unread.write_text("# gpu   mclk   pclk \n# Idx    MHz    MHz \n" + "    0   1593   1980 \n" * 9)
    assert heads(unread) == "nothing tells how busy it was"
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
def test_the_energy_of_a_gpu_that_was_never_read_is_missing(written: Written) -> None:
    """Of two GPUs one has no reading: what both drew is marked as more than is told."""
    path = written(61, lambda _c, i: {"sm_pct": 9} | ({} if i else {"power_w": 100}), num_gpus=2)
    assert [one["energy_unseen_min"] for one in gpus(path)] == [0, 10]
    assert " 2 GPUs, 10 min, >" in run(path).stdout
    assert " 1 GPU, 10 min, ~" in run(written(61, lambda *_: {"power_w": 100})).stdout


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
    cli.main(["report", str(path)])
    text = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text
    assert ("tensor %" in text) == (width == 132)


@pytest.mark.slow
def test_many_jobs_are_a_line_each(written: Written) -> None:
    """The worst first, and the way to see more."""
    for number, busy in ((0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (10, 4)):
        path = written(
            10, lambda c, _i, n=busy: {"sm_pct": 90 * (c < n)}, name=f"slurm-{number}.n.gutil"
        )
    lines = lines_of(run(path.parent).stdout)
    numbers = [line.split()[0] for line in lines if line[:1].isdigit()]
    assert numbers == ["0", "1", "2", "3", "4", "10"]
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
    assert host_list(names) == folded


def test_scattered_names_go_from_the_lowest_number_to_the_highest() -> None:
    """Not to the last in the order of the alphabet; one alone is named, however long."""
    hosts = [f"node{number}" for number in range(1, 31, 2)]
    long = "ip-10-0-12-34.eu-central-1.compute.internal"
    nodes: Any = [SimpleNamespace(place=SimpleNamespace(host=host)) for host in (*hosts, long)]
    names = tables._names  # noqa: SLF001 -- a cell of a large report
    assert (names(nodes[:-1]), names(nodes[-1:])) == ("15 of node1-node29", long)


@pytest.mark.slow
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
    assert run_unread("report", written(3)) == ["0"]


def test_help_and_version() -> None:
    """--help names each subcommand; the version is the package's."""
    done = subprocess.run(
        [sys.executable, "-m", "monitor", "--help"], capture_output=True, text=True, check=True
    )
    assert all(word in done.stdout for word in ("record", "report", "compose"))
    project = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert f'version = "{__version__}"' in project


def test_a_directory_without_logs_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The error says what was looked for, and where."""
    assert cli.main(["report", str(tmp_path)]) == 64
    assert ".gutil files; found none in" in capfd.readouterr().err
