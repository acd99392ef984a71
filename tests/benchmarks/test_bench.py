"""`make bench`, in its short form."""

import os
import subprocess
from pathlib import Path

import pytest

from benchmarks import layouts, race, report
from benchmarks.checkpoint import Saves
from benchmarks.contestant import Lap
from benchmarks.gpu import OnGpu
from benchmarks.gpu import Row as GpuRow
from benchmarks.heartbeat import Heartbeats
from benchmarks.layouts import Layouts
from benchmarks.reading import Reading
from benchmarks.recorder import Recorder
from benchmarks.startup import Startup
from benchmarks.toy import OPTIONS, Toy
from benchmarks.watching import Watching
from tests.environment import UNREACHABLE

ROOT = Path(__file__).resolve().parents[2]


def measured(on_gpu: OnGpu | None = None) -> report.Measured:
    """Return numbers that are easily distinguished."""
    laps = {
        entry.module: [
            Lap(steps_per_s=rate, steps_per_cpu_s=2 * rate, loss=0.1) for rate in (10.0, 20.0, 90.0)
        ]
        for entry in race.ENTRIES
    }
    laps["ours"] = [
        Lap(steps_per_s=rate, steps_per_cpu_s=rate * 4, loss=0.1) for rate in (30.0, 99.0, 50.0)
    ]
    results = race._results(laps)  # noqa: SLF001 -- the arithmetic itself is under test
    without = {k: v for k, v in results.items() if k != "plain_cnn"}
    start = Startup(
        num_ranks=1,
        total_s=[5.0, 3.0, 4.0],
        import_torch_s=[4.5, 2.9, 2.6],
        by_hand_s=[5.0, 3.2, 3.0],
        phases_s={"first step": [0.1, 0.2, 0.3]},
    )
    recorder = Recorder(
        duration_s=60,
        cpu_pct=[0.31, 0.2, 0.9],
        memory_mb=21.0,
        first_line_s=[0.12, 0.1],
        first_row_s=[0.2, 0.3],
        gpus="none",
        num_columns=38,
    )
    saves = Saves(
        num_parameters=50_380_800,
        size_bytes=605_257_646,
        stall_s={"sync": [2.0, 1.0, 4.0], "async": [0.1, 0.2, 0.08]},
        written_s={"sync": [2.0, 1.0, 4.0], "async": [3.0, 4.0, 5.0]},
        slowed_s=[0.5, 0.6, 0.7],
        first_stall_s=0.3,
    )
    reading = Reading(
        num_rows=46_080,
        num_bytes=9_000_000,
        report_s=1.0,
        report_cpu_s=1.5,
        report_mib=150.0,
        node_s=[0.4, 0.5, 0.6],
        node_cpu_s=[0.3, 0.3, 0.4],
        rows_cpu_s=[0.04, 0.05, 0.02],
    )
    watching = Watching(
        num_files=128,
        num_gpus=8,
        growth_s=0.5,
        duration_s=30.0,
        cpu_pct=13.9,
        pictures_per_s=1.97,
        memory_mb=98.0,
        start_cpu_s=0.9,
    )
    row = layouts.Row(
        name="fsdp",
        num_ranks=2,
        num_steps=4,
        ours_s=[1.1, 3.3, 2.0],
        by_hand_s=[1.0, 2.0, 8.0],
        ours_cpu_s=[2.0, 4.0, 4.1],
        by_hand_cpu_s=[2.0, 4.0, 4.0],
    )
    return report.Measured(
        machine="A CPU, 2 cores",
        load_before=0.5,
        load_after=1.5,
        num_threads=1,
        speed={"a": results, "b": without},
        startups=[start],
        recorder=recorder,
        reading=reading,
        watching=watching,
        heartbeats=Heartbeats(watched_us=3.21, unwatched_us=0.4, num_writes=6),
        saves=saves,
        toy=Toy(num_steps=720, total_s=171.4, bits_per_byte=2.196),
        layouts=Layouts(rows=[row], num_parameters=3_200_000, tokens_per_step=1024, log_every=2),
        on_gpu=on_gpu,
    )


def test_ratios_are_taken_within_a_round() -> None:
    """A ratio is the median of the rounds' own ratios, not a ratio of medians."""
    text = report.render(measured())
    (row,) = (line for line in text.splitlines() if "python -m trainer`**" in line)
    # rounds: 30/10, 99/20, 50/90; by CPU time twice that; the medians alone would give 2.50
    assert row == "| **`python -m trainer`** | 50.0 | 3.00 | 6.00 | 50.0 | 3.00 | 6.00 |"


def test_what_is_ours_is_the_difference_within_a_repetition() -> None:
    """The start's own share is the median of differences, beside the smallest values' one."""
    text = report.render(measured())
    (row,) = (line for line in text.splitlines() if "**ours**" in line)
    assert row == "| **ours**, the difference | 0.50 s (0.40 s) |"


def test_the_stall_of_a_save_is_compared_within_a_repetition() -> None:
    """The ratio is the median of 5, 20 and 2 %, not that of the medians."""
    text = report.render(measured())
    (row,) = (line for line in text.splitlines() if "stands still" in line)
    assert row == (
        "| training stands still for | 2.00 s (1.00 s) | 0.10 s (0.08 s) | 5.0 % | under 10 % |"
    )
    assert "50 million parameters and AdamW's state: 605 MB" in text


def test_the_recorder_is_measured_by_the_median_of_its_windows() -> None:
    """A neighbour that takes the core for a while does not count as its own need."""
    text = report.render(measured())
    assert "| CPU, of one core | 0.31 % (0.20 %) | under 0.2 % |" in text
    assert "CPU: median (smallest) of 3 windows" in text


def test_reading_is_reported_with_its_target() -> None:
    """A report on all rows in under 25 s; the median of what one node's rows take."""
    text = report.render(measured())
    assert "| report on 0.0 million rows, 0.0 GB | 1.0 s | under 25 s |" in text
    assert "| that day's rows into memory, CPU time | 0.04 s (0.02 s) |  |" in text


def test_watching_is_reported_with_its_target() -> None:
    """How many logs, how often each grew, and what that cost."""
    text = report.render(measured())
    assert (
        "| CPU, of one core: 128 logs of 8 GPUs, each growing every 0.5 s | 13.9 % | < 20 % |"
    ) in text


def test_the_toy_is_the_readmes() -> None:
    """Its options are those that a reader has to type, and its numbers have their targets."""
    readme = (ROOT / "README.md").read_text()
    assert f"python -m trainer {OPTIONS} --out" in " ".join(readme.replace("\\\n", "").split())
    text = report.render(measured())
    assert "| after 720 steps | measured | target |" in text
    assert "| bits per byte of files it never saw | 2.20 | under 2.5 |" in text
    assert "| from the command to its end | 171 s | 180 s |" in text


def test_a_layout_is_compared_within_a_round() -> None:
    """What ours costs is the median of 10, 65 and -75 %, not the ratio of medians."""
    text = report.render(measured())
    (row,) = (line for line in text.splitlines() if line.startswith("| fsdp |"))
    assert row == "| fsdp | 2 | 2.00 | 2.00 | +10.0 % (-32.5 to +37.5) | +0.0 % | at most 3 % |"


def test_a_missing_gpu_is_reported() -> None:
    """No row, and no number, for what could not be measured."""
    assert "Not measured: no GPU was at hand." in report.render(measured())


def test_a_gpu_is_compared_with_plain_loops() -> None:
    """A ratio is the median of the rounds' own: to the plain loop, and to the expert's."""
    row = GpuRow(
        label="a model",
        unit="tokens/s",
        target_per_s=55_000,
        ours_per_s=[60_000.0, 61_000.0, 50_000.0],
        plain_per_s=[50_000.0, 61_000.0, 60_000.0],
        expert_per_s=[80_000.0, 61_000.0, 100_000.0],
    )
    text = report.render(measured(OnGpu(device="NVIDIA H200", rows=[row])))
    assert (
        "| a model | 60,000 tokens/s | 80,000 tokens/s | 60,000 tokens/s | 1.00 | 0.75 "
        "| at least 55,000 tokens/s on an H200 |"
    ) in text
    assert "On NVIDIA H200" in text


@pytest.mark.slow
@pytest.mark.timeout(1300)
@pytest.mark.thorough
def test_a_quick_run_writes_every_row(tmp_path: Path) -> None:
    """The command measures all contestants, the start and the recorder, and names no path."""
    out = tmp_path / "results.md"
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DDP_", "COVERAGE_"))}
    ended = subprocess.run(
        [ROOT / "benchmarks" / "run.sh", "--quick", "--out", out],
        env=env,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    if UNREACHABLE in ended.stderr:
        pytest.skip(f"Lightning and Accelerate cannot be installed: {UNREACHABLE}")
    assert ended.returncode == 0, ended.stderr
    text = out.read_text()
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|")]
    assert [e.label for e in race.ENTRIES if e.label not in rows] == []
    assert {"**total**", "**ours**, the difference", "memory, resident"} <= set(rows)
    assert "training stands still for" in rows
    assert "bits per byte of files it never saw" in rows
    assert {"ddp", "fsdp x tp"} <= set(rows)
    assert "On a CPU, at toy size" in text
    assert "nan" not in text
    assert str(ROOT) not in text
