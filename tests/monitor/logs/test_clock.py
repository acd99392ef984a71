"""Time in a host's log, whatever its clock and its GPUs do."""

import itertools
import json
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monitor.analysis.engine import evaluate
from monitor.logs import aggregates, files, gutil, reader, series, stats
from monitor.logs.sample import GpuSample, HostSample, Row
from monitor.report import document
from tests.monitor.observed import (
    NOON,
    WATTS,
    Observation,
    head,
    observations,
    reported_of,
    text,
)
from tests.monitor.reported import gpus

HOUR = 3600


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stamped", "plain"])
@pytest.mark.parametrize("files", [1, 2])
@pytest.mark.parametrize("back_s", [HOUR, 20, 86_400])
def test_a_clock_set_back(tmp_path: Path, kind: str, files: int, back_s: int) -> None:
    """Hours, energy and the longest idle time are those of the order of rows."""
    stamped, rotated = kind == "stamped", files > 1
    first = observations(1200)
    second = observations(1200, begin_s=1200, off_s=-back_s, busy=0)
    path = tmp_path / "slurm-7.n1.gutil"
    if rotated:
        Path(f"{path}.1").write_text(head(1) + text(first, stamped=stamped))
        path.write_text(head(1) + text(second, stamped=stamped))
    else:
        path.write_text(head(1) + text([*first, *second], stamped=stamped))
    (one,) = gpus_of_logs(tmp_path)
    assert one["span_s"] == 2399
    assert one["energy_j"] == 2399 * WATTS
    assert one["longest_idle"]["minutes"] == 1200 / 60
    assert one["busy_pct"] == 50


def gpus_of_logs(folder: Path) -> list[dict[str, Any]]:
    """As the report's own door finds them: files of one log together."""
    nodes, reported = aggregates.count(files.find([str(folder)]))
    found = document.document(stats.join(nodes), reported, None)["gpus"]
    for gpu in found:
        gpu["span_s"] = gpu["hours"] and round(gpu["hours"] * 3600, 6)
        gpu["energy_j"] = gpu["energy_kwh"] and round(gpu["energy_kwh"] * 3.6e6, 3)
    return found


def test_a_clock_set_back_is_shown_as_written(tmp_path: Path) -> None:
    """First and last are the log's own words, and so is where a finding begins."""
    path = tmp_path / "slurm-7.n1.gutil"
    path.write_text(
        head(1)
        + text(
            [*observations(600), *observations(2400, begin_s=600, off_s=-HOUR, busy=0)],
            stamped=False,
        )
    )
    reported = reported_of(path)
    wall = [NOON, NOON + timedelta(seconds=2999 - HOUR)]
    assert [reported["first"][:19], reported["last"][:19]] == [
        f"{moment:%Y-%m-%d %H:%M:%S}" for moment in wall
    ]
    (idle,) = [one for one in evaluate(series.load([str(path)])) if one.rule == "idle"]
    begin = NOON + timedelta(seconds=599)
    assert reported["longest_idle"]["begin"][:19] == f"{begin:%Y-%m-%d %H:%M:%S}"
    assert idle.begin_s == pytest.approx((begin - datetime(1970, 1, 1)).total_seconds(), abs=1)  # noqa: DTZ001


def test_one_memory_error_stays_one(tmp_path: Path) -> None:
    """Two stretches that interleave would make a counter rise and fall."""
    layout = gutil.Layout("pumte")
    rows = []
    for i in range(400):
        wall = NOON + timedelta(seconds=i - (200 if i >= 200 else 0))
        sample = GpuSample(index=0, sm_pct=90, ecc_uncorrected=int(i >= 150), ecc_corrected=0)
        rows.append(Row(wall, sample, HostSample(40, 2048)))
    path = tmp_path / "slurm-7.n1.gutil"
    path.write_text(layout.header() + layout.block(rows, 0))
    found = [one.evidence for one in evaluate(series.load([str(path)])) if one.rule == "ecc"]
    assert len(found) == 1
    assert found[0].startswith("1 ")


def test_a_clock_set_forward_is_no_gap(tmp_path: Path) -> None:
    """The monotonic stamp says that 15 s passed, not an hour."""
    path = tmp_path / "slurm-7.n1.gutil"
    moved = [*observations(200, 15), *observations(200, 15, begin_s=3000, off_s=HOUR)]
    path.write_text(head(15) + text(moved, stamped=True))
    reported = reported_of(path)
    assert (reported["span_s"], reported["energy_j"]) == (399 * 15, 399 * 15 * WATTS)
    assert [one for one in evaluate(series.load([str(path)])) if one.rule == "gap"] == []


@pytest.mark.parametrize(("pause_s", "whole_s"), [(HOUR, 399 * 15), (HOUR + 60, 398 * 15)])
def test_summer_time_is_no_gap_in_a_log_of_dmons(
    tmp_path: Path, pause_s: int, whole_s: int
) -> None:
    """It states no offset, and a night's idle time goes on; any other pause is a gap."""
    path = tmp_path / "slurm-7.n1.gutil"
    moved = [*observations(200, 15), *observations(200, 15, begin_s=3000, off_s=pause_s)]
    path.write_text(text(moved, stamped=False, letters="pumt"))
    assert reported_of(path)["span_s"] == whole_s
    gaps = [one for one in evaluate(series.load([str(path)])) if one.rule == "gap"]
    assert len(gaps) == (pause_s != HOUR)


@pytest.mark.parametrize("off_s", [366 * 86_400, -366 * 86_400, HOUR])
@pytest.mark.parametrize("num_off", [1, 50])
def test_a_clock_that_went_wrong_and_came_right(tmp_path: Path, off_s: int, num_off: int) -> None:
    """As one damaged digit of a day does it: the rows before it stay where they are."""
    path = tmp_path / "slurm-7.n1.gutil"
    made = observations(200, 15)
    made[100 : 100 + num_off] = observations(num_off, 15, begin_s=1500, off_s=off_s)
    path.write_text(head(15) + text(made, stamped=False))
    assert reported_of(path)["span_s"] == 199 * 15
    (one,) = series.load([str(path)]).gpus
    assert np.diff(one.time_s).tolist() == [15] * 199
    assert one.time_s[0] == one.written_s[0]


@pytest.mark.parametrize("day", ["92261121", "00261121"])
@pytest.mark.parametrize("place", [0, 100, 199])
def test_a_year_that_no_clock_shows(tmp_path: Path, day: str, place: int) -> None:
    """The row counts, and lies beside its neighbour."""
    path = tmp_path / "slurm-7.n1.gutil"
    lines = text(observations(200, 15), stamped=False).splitlines(keepends=True)
    lines[place - 200] = f" {day}{lines[place - 200][9:]}"
    path.write_text(head(15) + "".join(lines))
    (one,) = series.load([str(path)]).gpus
    assert (reader.read(str(path)).num_rows, len(one.time_s)) == (200, 200)
    others = np.delete(one.time_s, place)
    assert np.diff(others).max() <= 30
    assert others.min() - 15 <= one.time_s[place] <= others.max() + 15


@pytest.mark.parametrize("day", ["00010101", "00011231", "20261131", "99990101", "99991231"])
def test_a_day_that_no_clock_shows_is_damage(tmp_path: Path, day: str) -> None:
    """Nor is there one where a time zone's hours may lead out of what Python calls a year."""
    path = tmp_path / "slurm-7.n1.gutil"
    lines = text(observations(9), stamped=False).splitlines(keepends=True)
    lines[5] = f" {day}{lines[5][9:]}"
    path.write_text("".join(lines))
    found = reader.read(str(path))
    assert (found.num_rows, found.num_unreadable) == (8, 1)


def test_a_reboot_begins_the_stamp_anew(tmp_path: Path) -> None:
    """A stamp that falls says nothing of what passed: the wall clock does."""
    path = tmp_path / "slurm-7.n1.gutil"
    after = observations(100, begin_s=103, boot_s=103)
    path.write_text(head(1) + text([*observations(100), *after], stamped=True))
    assert reported_of(path)["span_s"] == 99 + 4 + 99


@pytest.mark.parametrize(("before_s", "after_s"), [(1, 60), (60, 1), (1, 15), (15, 300)])
@pytest.mark.parametrize("reported", [1, 0])
def test_an_interval_that_changes(
    tmp_path: Path, before_s: int, after_s: int, reported: int
) -> None:
    """Each row speaks for its own interval; a pause that is longer than either is a gap."""
    first = observations(300, before_s)
    then = observations(20, after_s, begin_s=first[-1].true_s + after_s, busy=0)
    pause_s = 7 * max(before_s, after_s)
    last = observations(20, after_s, begin_s=then[-1].true_s + pause_s)
    new_head = head(after_s) if reported else ""
    text_of = [text(part, stamped=True) for part in (first, [*then, *last])]
    path = tmp_path / "slurm-7.n1.gutil"
    path.write_text(head(before_s) * reported + text_of[0] + new_head + text_of[1])
    one = reported_of(path)
    assert one["span_s"] == 299 * before_s + 20 * after_s + 19 * after_s
    assert one["idle_min"] * 60 == pytest.approx(20 * after_s)
    assert one["longest_idle"]["minutes"] * 60 == pytest.approx(20 * after_s)


def test_an_index_that_becomes_another_gpu(tmp_path: Path) -> None:
    """Each has its own rows, memory and energy, wherever it is reported."""
    one = {"gpu 0": "GPU-a NVIDIA H100", "memory_mib 0": "81559"}
    other = {"gpu 0": "GPU-b NVIDIA H100 MIG", "memory_mib 0": "40000"}
    path = tmp_path / "slurm-7.n1.gutil"
    first, then = observations(100), [Observation(i, busy=0) for i in range(2_000_000, 2_000_100)]
    path.write_text(
        head(1, **one) + text(first, stamped=True) + head(1, **other) + text(then, stamped=True)
    )
    made = {gpu["uuid"]: gpu for gpu in gpus(path)}
    assert {uuid: gpu["memory_mib"] for uuid, gpu in made.items()} == {
        "GPU-a": 81559,
        "GPU-b": 40000,
    }
    assert {uuid: gpu["energy_j"] for uuid, gpu in made.items()} == {
        "GPU-a": 99 * WATTS,
        "GPU-b": 99 * WATTS,
    }
    run = series.load([str(path)])
    assert [gpu.number("memory_mib") for gpu in run.gpus] == [81559, 40000]
    assert [np.nanmean(gpu.values["sm"]) for gpu in run.gpus] == [90, 0]


def test_a_gpu_that_gets_another_index_stays_one(tmp_path: Path) -> None:
    """As after a requeue that gave the job some of its GPUs: it has its last index and all rows."""
    path = tmp_path / "slurm-7.n1.gutil"
    first = [replace(one, index=i) for one in observations(100) for i in (0, 1)]
    then = observations(100, begin_s=1000, busy=0)
    one = {"gpu 0": "GPU-a A100", "memory_mib 0": "1", "gpu 1": "GPU-b H100", "memory_mib 1": "2"}
    other = {"gpu 0": "GPU-b H100", "memory_mib 0": "2", "attempt": "2"}
    begun = head(1, attempt="1", **one) + text(first, stamped=True)
    path.write_text(begun + head(1, **other) + text(then, stamped=True))
    a, b = sorted(gpus(path), key=lambda gpu: str(gpu["uuid"]))
    assert (a["uuid"], a["gpu"], a["num_samples"], a["energy_j"]) == ("GPU-a", 0, 100, 99 * WATTS)
    assert (b["uuid"], b["gpu"], b["num_samples"], b["memory_mib"]) == ("GPU-b", 0, 200, 2)
    assert (b["energy_j"], b["span_s"], b["busy_pct"]) == (2 * 99 * WATTS, 2 * 99, 50)
    assert "2 GPUs on 1 node" in subprocess.run(
        [sys.executable, "-m", "monitor", "diagnose", str(path)],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.replace("\n", " ")


def test_exports_tell_each_rows_own_gpu(tmp_path: Path) -> None:
    """The UUID of a row is the one above it."""
    path = tmp_path / "slurm-7.n1.gutil"
    parts = [
        head(1, **{"gpu 0": f"GPU-{name} NVIDIA H100"})
        + text(observations(5, begin_s=b), stamped=True)
        for name, b in (("a", 0), ("b", 1000))
    ]
    path.write_text("".join(parts))
    target = tmp_path / "rows.jsonl"
    command = [
        sys.executable,
        "-m",
        "monitor",
        "export",
        str(path),
        "--format=jsonl",
        "--out",
        str(target),
    ]
    subprocess.run(command, check=True, capture_output=True)
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert [row["uuid"] for row in rows] == ["GPU-a"] * 5 + ["GPU-b"] * 5


def test_nodes_in_other_zones_end_together(tmp_path: Path) -> None:
    """Plain dmon has no zone: 5.5 h between the clocks of two nodes are no early end."""
    half_past = 5.5 * HOUR
    for host, off_s in (("n1", 0.0), ("n2", half_past), ("n3", -HOUR)):
        rows = text(observations(300, 15, off_s=off_s), stamped=False, letters="pumt")
        (tmp_path / f"slurm-7.{host}.gutil").write_text(rows)
    assert [one for one in evaluate(series.load([str(tmp_path)])) if one.rule == "gap"] == []
    short = text(observations(200, 15, off_s=half_past), stamped=False, letters="pumt")
    (tmp_path / "slurm-7.n2.gutil").write_text(short)
    (early,) = [one for one in evaluate(series.load([str(tmp_path)])) if one.rule == "gap"]
    assert (early.host, early.evidence) == (
        "n2",
        "its log ends 25 min before that of other nodes of the job",
    )


@pytest.mark.slow
def test_clocks_gaps_and_cells_at_random(tmp_path: Path) -> None:
    """Whatever a log goes through, hours, idle time and energy are the test's own sums."""
    for seed in range(60):
        noise = np.random.default_rng(seed)
        made, watched_s, idle_s, used_j = _at_random(noise)
        path = tmp_path / f"slurm-{seed}.n1.gutil"
        path.write_text(made)
        reported = reported_of(path)
        assert reported["span_s"] == pytest.approx(watched_s), seed
        assert reported["idle_min"] * 60 == pytest.approx(idle_s), seed
        assert reported["energy_j"] == pytest.approx(used_j), seed


def _at_random(noise: np.random.Generator) -> tuple[str, float, float, float]:
    """A log in stretches: before each the clock is set, or nothing is written for a while."""
    interval_s = int(noise.choice([1, 5, 15]))
    made: list[Observation] = []
    true_s, off_s, gaps = 0, 0.0, 0
    for _ in range(int(noise.integers(2, 6))):
        busy = float(noise.choice([0, 90]))
        made += [
            Observation(
                true_s + interval_s * i,
                off_s,
                busy=int(busy),
                power_w=None if noise.random() < 0.05 else WATTS,
                counted=bool(noise.random() > 0.05),
            )
            for i in range(int(noise.integers(30, 120)))
        ]
        true_s = int(made[-1].true_s) + interval_s
        match int(noise.integers(0, 3)):
            case 0:
                off_s -= float(noise.integers(30 * interval_s, 7200))
            case 1:
                off_s += float(noise.integers(30 * interval_s, 7200))
            case _:
                true_s += int(noise.integers(7 * interval_s, 3600))
                gaps += 1
    # The ends have readings, so that the counter speaks of all there is.
    made[0], made[-1] = (_whole(made[at]) for at in (0, -1))
    steps = [(b.true_s - a.true_s, b) for a, b in itertools.pairwise(made)]
    watched = [
        (step_s, observation) for step_s, observation in steps if step_s <= 5 * max(1, interval_s)
    ]
    idle_s = sum(step_s for step_s, observation in watched if not observation.busy)
    used_j = WATTS * (made[-1].true_s - made[0].true_s)
    whole = head(interval_s) + text(made, stamped=True)
    return whole, sum(step_s for step_s, _ in watched), idle_s, used_j


def _whole(observation: Observation) -> Observation:
    return Observation(observation.true_s, observation.off_s, busy=observation.busy)


def test_each_node_counts_once_in_means_of_hosts(tmp_path: Path) -> None:
    """A node of eight GPUs is no eight nodes; hours of several GPUs say that they are a sum."""
    layout = gutil.Layout("pumth")
    for host, num_gpus, cpu_pct in (("n1", 8, 80), ("n2", 1, 20)):
        rows = [
            Row(NOON + timedelta(seconds=s), GpuSample(index=i, sm_pct=90), HostSample(cpu_pct, 9))
            for s in range(101)
            for i in range(num_gpus)
        ]
        text_of = layout.header() + layout.block(rows, 0)
        (tmp_path / f"slurm-7.{host}.gutil").write_text(text_of)
    nodes, reported = aggregates.count(files.find([str(tmp_path)]))
    made = document.document(stats.join(nodes), reported, None)
    (job,) = made["jobs"]
    assert job["cpu_pct"]["mean"] == 50
    assert job["gpu_hours"] == job["hours"] == pytest.approx(9 * 100 / 3600)
    assert [node["cpu_pct"]["num"] for node in made["nodes"]] == [101, 101]
