"""What `export` makes of runs as metrics."""

import json
import os
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from monitor.logs import gutil
from monitor.logs.sample import GpuSample, HostSample, Row
from monitor.runs import why
from tests.monitor.collected import NOW, NOW_S, collect

if TYPE_CHECKING:
    from tests.monitor.conftest import Story


@pytest.fixture
def lived(story: "Story", monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of job 42 that trains, with two monitors' logs beside it."""
    monkeypatch.setattr(time, "time", lambda: NOW_S)
    story.now_s = NOW_S - 100
    story.start()
    story.train(0, 90, saves=(50,))
    story.metrics[-1] |= {"samples_per_s": 2555.5, "data_wait_pct": 2.5, "loss": -0.25, "lr": 1e-3}
    story.metrics[-1] |= {"tokens_per_s": 5e4, "flops_per_s": 2e14, "mfu_pct": 41.5}
    story.metrics.append(story.metrics[-1] | {"test_accuracy": 0.9, "loss": None})
    run_dir = story.write()
    layout = gutil.Layout("pumt")
    for node in ("n1", "n2"):
        row = Row(NOW - timedelta(seconds=3), GpuSample(index=0, sm_pct=50), HostSample())
        text = layout.header() + "## utc_offset: +00:00\n## user: ada\n" + layout.line(row)
        (run_dir.parent / f"slurm-42.{node}.gutil").write_text(text)
    touch(run_dir, NOW_S - 2)
    return run_dir


def touch(run_dir: Path, time_s: float) -> None:
    """Let everything of a run have been written last at this time."""
    for path in (*run_dir.rglob("*"), *run_dir.parent.glob("*.gutil")):
        os.utime(path, (time_s, time_s))


def test_a_run_tells_of_its_trainer_and_its_goodput(lived: Path) -> None:
    """With the logs beside it; a null is no reading, a loss below 0 is one."""
    found = collect(lived)
    labels = {"job": "42", "user": "ada", "run": "slurm-42"}
    last = json.loads((lived / "metrics.jsonl").read_text().splitlines()[-1])
    last_s = datetime.fromisoformat(last["time"]).timestamp()
    for name, value in (
        ("ddp_trainer_step", 90),
        ("ddp_trainer_loss", -0.25),
        ("ddp_trainer_samples_per_second", 2555.5),
        ("ddp_trainer_tokens_per_second", 5e4),
        ("ddp_trainer_flops_per_second", 2e14),
        ("ddp_trainer_mfu_ratio", 0.415),
        ("ddp_trainer_data_wait_ratio", 0.025),
        ("ddp_trainer_test_accuracy_ratio", 0.9),
        ("ddp_trainer_last_step_timestamp_seconds", last_s),
        ("ddp_run_up", 1),
        ("ddp_run_attempt", 1),
        ("ddp_run_world_size", 2),
        ("ddp_run_checkpoint_step", 50),
    ):
        ((reported, number),) = found[name]
        assert (reported, number) == (labels, pytest.approx(value, rel=1e-12)), name
    assert found["ddp_run_steps_lost"] == [(labels, 0)]
    goodput = why.gather(str(lived), NOW_S)["goodput"]
    share = pytest.approx(goodput["goodput_pct"] / 100)
    assert found["ddp_run_goodput_ratio"] == [(labels, share)]
    spent = {reported["spent_on"]: number for reported, number in found["ddp_run_time_seconds"]}
    assert sum(spent.values()) == pytest.approx(goodput["wall_s"])
    assert {reported["node"] for reported, _ in found["ddp_gpu_up"]} == {"n1", "n2"}


def test_a_directory_stands_for_its_logs_and_runs(lived: Path, tmp_path: Path) -> None:
    """Each once, also when named twice, and without what is no run."""
    (lived.parent / "other").mkdir()
    whole = collect(lived)
    assert collect(lived.parent) == whole
    assert collect(lived, lived.parent, lived) == whole
    (tmp_path / "runs").mkdir()
    lived.rename(tmp_path / "runs" / "mine")
    moved = collect(tmp_path / "runs")
    assert moved["ddp_trainer_step"][0][0]["run"] == "mine"
    assert "ddp_gpu_up" not in moved


def test_a_run_that_hangs_stays_and_one_that_ended_goes(lived: Path, story: "Story") -> None:
    """As long as its monitors report, a silent run is exported; after its end it is soon gone."""
    touch(lived, NOW_S - 1000)
    for path in lived.parent.glob("*.gutil"):
        os.utime(path, (NOW_S, NOW_S))
    found = collect(lived.parent)
    assert (found["ddp_run_up"][0][1], found["ddp_trainer_step"][0][1]) == (1, 90)
    story.fail(1, 70)
    story.write()
    touch(lived, NOW_S - 200)
    assert collect(lived.parent)["ddp_run_up"][0][1] == 0
    gone = collect(lived.parent, now_s=NOW_S + 500)
    assert "ddp_run_up" not in gone
    assert "ddp_trainer_step" not in gone


def test_a_run_without_events_has_its_metrics(lived: Path) -> None:
    """A trainer that was started by hand, or whose events are gone; odd lines do no harm."""
    (lived / "events.jsonl").unlink()
    lines = [{"step": 3, "loss": True, "time": 5}, {"step": 4, "loss": float("nan")}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (lived / "metrics.jsonl").write_text(text + '{"step": 5')
    touch(lived, NOW_S)
    found = collect(lived)
    assert found["ddp_trainer_step"] == [({"run": "slurm-42"}, 4)]
    assert "ddp_trainer_loss" not in found
    assert "ddp_run_up" not in found
    assert "ddp_trainer_last_step_timestamp_seconds" not in found
