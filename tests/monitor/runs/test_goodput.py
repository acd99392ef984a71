"""Where the time went: every second in one place, whatever the events are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.logs.sample import GpuSample, HostSample, RankSample
from monitor.runs import record

ROOT = Path(__file__).resolve().parents[3]
PARTS = (
    "start_up_s",
    "data_wait_s",
    "compute_s",
    "validation_s",
    "checkpoint_s",
    "lost_s",
    "restart_s",
    "shutdown_s",
    "unknown_s",
)
T0 = datetime(2026, 11, 21, 4, 0, 0, tzinfo=UTC).timestamp()


def at(second: float) -> str:
    """A time as events have it."""
    moment = datetime.fromtimestamp(T0 + second, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


NAMES = st.sampled_from(
    ["rank_up", "rank_end", "resume", "first_step", "checkpoint", "ledger", "last_beats", "verdict"]
)
SECONDS = st.floats(-10, 1000, allow_nan=False)
EVENT = st.fixed_dictionaries(
    {"event": NAMES, "after": SECONDS, "host": st.sampled_from(["n1", "n2"])},
    optional={
        "rank": st.integers(0, 3),
        "code": st.sampled_from([0, 1, 75, 137]),
        "step": st.integers(0, 500),
        "data_wait_s": st.floats(0, 2000),
        "checkpoint_s": st.floats(0, 2000),
        "validation_s": st.floats(0, 2000),
        "stall_s": st.floats(0, 50),
    },
)
METRIC = st.fixed_dictionaries(
    {"after": SECONDS, "step": st.integers(0, 500)},
    optional={"data_wait_s": st.floats(0, 2000), "train_time_s": st.floats(0, 2000)},
)
ATTEMPT = st.fixed_dictionaries(
    {
        "gap": st.floats(-5, 100),
        "wall": st.floats(0, 1000),
        "code": st.sampled_from([None, 0, 1, 75, 76, 137]),
        "events": st.lists(EVENT, max_size=8),
        "metrics": st.lists(METRIC, max_size=4),
        "foreign": st.booleans(),
    }
)


def events_and_metrics(
    history: list[dict[str, Any]],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The events and metrics of some generated attempts."""
    events, metrics, now = [], [], 0.0
    for number, one in enumerate(history, start=1):
        now += one["gap"]
        head = {"attempt": number, "source": "x", "host": "n1"}
        command = ["--", "x"] if one["foreign"] else []
        events.append({"time": at(now), "event": "start", **head, "command": command})
        for event in one["events"]:
            rest = {key: value for key, value in event.items() if key != "after"}
            events.append({"time": at(now + event["after"]), **head, **rest})
        for line in one["metrics"]:
            rest = {key: value for key, value in line.items() if key != "after"}
            metrics.append({"time": at(now + line["after"]), "attempt": number, **rest})
        now += one["wall"]
        if one["code"] is not None:
            events.append({"time": at(now), "event": "end", **head, "code": one["code"]})
    return events, metrics


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(ATTEMPT, min_size=1, max_size=4))
def test_the_parts_add_up_to_the_wall_time(history: list[dict[str, Any]]) -> None:
    """No part is negative; with all ends known, their sum is the last end less the first start."""
    made = record.compose(*events_and_metrics(history))
    goodput = made["goodput"]
    assert all(goodput[part] >= 0 for part in PARTS)
    assert sum(goodput[part] for part in PARTS) == pytest.approx(goodput["wall_s"], abs=0.02)
    assert goodput["wall_s"] == pytest.approx(
        sum(one["ledger"]["wall_s"] for one in made["attempts"]), abs=0.02
    )
    assert goodput["goodput_pct"] is None or 0 <= goodput["goodput_pct"] <= 100
    if all(one["code"] is not None and one["gap"] >= 0 for one in history):
        wall = sum(one["wall"] + one["gap"] for one in history) - history[0]["gap"]
        assert goodput["wall_s"] == pytest.approx(wall, abs=0.02, rel=0.001)


def test_a_sound_run(story: Any) -> None:
    """Start-up to the first step, the trainer's own sums, the way out; all the rest computes."""
    story.start()  # 2 s
    story.train(0, 100)  # first step after 1 s, then 99 s
    story.add_event(
        "ledger", 0, data_wait_s=12.0, checkpoint_s=6.0, validation_s=1.0, compute_s=80.0
    )
    story.add_event("summary", 0, summary={"outcome": "finished", "steps": 100})
    story.rank_end(0, 0)
    story.rank_end(1, 0)
    story.add_event("end", code=0)
    goodput = record.read(str(story.write()))["goodput"]
    assert {part: goodput[part] for part in PARTS if goodput[part]} == {
        "start_up_s": 3.0,
        "data_wait_s": 12.0,
        "checkpoint_s": 6.0,
        "validation_s": 1.0,
        "compute_s": 80.0,
        "shutdown_s": 3.0,
    }
    assert goodput["goodput_pct"] == round(100 * 80 / 105, 1)


def test_steps_that_were_done_again_are_lost(story: Any) -> None:
    """Attempt 1 reached step 60 and saved step 40; attempt 2 begins there: 20 of 60 are lost."""
    story.start()
    story.train(0, 60, saves=(20, 40))
    story.fail(1, 137, "KILL")
    story.now_s += 7
    story.again()
    story.start()
    story.train(40, 100, saves=(100,))
    story.fail(1, 137, "KILL")
    made = record.read(str(story.write()))
    first, second = made["attempts"]
    assert (first["last_step"], first["steps_lost"]) == (60, 20)
    assert second["checkpoint_used"] == {"step": 40, "path": "checkpoints/step-40", "skipped": []}
    assert (second["last_step"], second["steps_lost"], made["steps_lost"]) == (100, 0, 20)
    assert made["goodput"]["restart_s"] == pytest.approx(8)
    # 59 s from the first step, of which 6 waited; a third of the rest, and a second until the end
    assert first["ledger"]["lost_s"] == pytest.approx((59 - 6) / 3 + 1, abs=0.001)
    assert second["ledger"]["lost_s"] == pytest.approx(1)


def test_a_checkpoint_that_did_not_load_costs_more(story: Any) -> None:
    """Attempt 3 begins before what attempt 2 began with: steps of both are lost, none twice."""
    for begin, last in ((0, 40), (40, 80), (20, 60)):
        story.start()
        story.train(begin, last, saves=(last,))
        story.fail(1, 1)
        story.again()
    made = record.read(str(story.write()))["attempts"]
    assert [one["steps_lost"] for one in made] == [0, 60, 0]
    computed = [one["ledger"]["compute_s"] for one in made]
    assert computed[0] == pytest.approx((39 - 4) / 2)
    assert computed[1] == 0


def test_a_rollback_loses_steps_within_an_attempt(story: Any) -> None:
    """Back from step 31 to 20 because of a NaN: 11 of 51 steps are lost, and nothing else."""
    story.start()
    story.train(0, 30, saves=(20,))
    story.add_event(
        "non_finite", 0, step=31, epoch=1, samples=[1], policy="rollback", action="rollback"
    )
    story.add_event("resume", 0, step=20, path="checkpoints/step-20", skipped=[])
    story.now_s += 20
    story.metrics.append({"time": story.time, "attempt": 1, "step": 40, "data_wait_s": 3.0})
    story.add_event("end", code=0)
    (attempt,) = record.read(str(story.write()))["attempts"]
    assert attempt["checkpoint_used"]["step"] == 0
    assert attempt["steps_lost"] == 11
    assert attempt["ledger"]["lost_s"] == pytest.approx((29 + 20 - 3) * 11 / 51, abs=0.001)


def test_steps_that_only_the_heartbeat_saw_count(story: Any) -> None:
    """The last step is the one of the last beat, not of the last line of metrics."""
    story.start()
    story.train(0, 25, saves=(20,))
    story.add_event("last_beats", node="n1", ranks={"0": {"step": 27, "phase": 2, "age_s": 0.1}})
    story.fail(1, 137, "KILL")
    (attempt,) = record.read(str(story.write()))["attempts"]
    assert (attempt["last_step"], attempt["steps_lost"]) == (27, 7)


def test_standing_still_before_a_verdict_is_lost(story: Any) -> None:
    """Also where the trainer's own last word comes after the verdict and counts it as computing."""
    story.start()
    story.train(0, 40, saves=(40,))
    story.add_event("hang_report", 30, node="n1", ranks=[{"rank": 0, "age_s": 30.0}, {"rank": 1}])
    story.add_event("verdict", 0, kind="hung", rank=1, node="n2", gpu="no GPU", top=None, text="x")
    story.add_event(
        "ledger", 1, data_wait_s=4.0, checkpoint_s=0.0, validation_s=0.0, compute_s=70.0
    )
    story.rank_end(0, 76)
    story.add_event("end", 0, code=76)
    ledger = record.read(str(story.write()))["attempts"][0]["ledger"]
    assert (ledger["compute_s"], ledger["data_wait_s"], ledger["lost_s"]) == (35.0, 4.0, 32.0)


def test_of_a_killed_run_the_last_moments_are_unknown(story: Any) -> None:
    """From the last line of metrics to the last sign of life nothing is reported."""
    story.start()
    story.train(0, 20)
    story.add_event("orphans", 9, node="n1", pids=[10], killed=[])
    goodput = record.read(str(story.write()))["goodput"]
    assert goodput["unknown_s"] == pytest.approx(9)
    assert goodput["wall_s"] == pytest.approx(2 + 1 + 19 + 9)


def test_of_a_foreign_command_only_the_frame_is_known(story: Any) -> None:
    """What it does between its start and its end, it does not tell."""
    story.start(command=("--", "sleep", "9"))
    story.now_s += 9
    story.rank_end(0, 0)
    story.add_event("end", code=0)
    goodput = record.read(str(story.write()))["goodput"]
    assert (goodput["unknown_s"], goodput["start_up_s"], goodput["shutdown_s"]) == (10, 2, 1)
    assert goodput["goodput_pct"] is None


def test_a_trainer_that_never_stepped_was_starting(story: Any) -> None:
    """Until its first step everything is start-up."""
    story.start()
    story.now_s += 30
    story.fail(1, 1, text="ValueError: x\n")
    goodput = record.read(str(story.write()))["goodput"]
    assert goodput["start_up_s"] == pytest.approx(33)


def test_another_nodes_clock_does_not_stretch_a_killed_run(story: Any) -> None:
    """An hour that only n2's clock knows is no wall time."""
    story.start()
    story.train(0, 20)
    story.add_event("monitor_end", 0, node="n2", pid=1, code=0)
    story.events[-1] |= {"host": "n2", "time": "2026-11-21T05:17:30.000Z"}
    assert record.read(str(story.write()))["goodput"]["wall_s"] < 60


def test_what_a_slow_rank_went_through(story: Any) -> None:
    """The record names it, with clocks, reasons and load that the monitor saw in that time."""

    def poll(mhz: int, bits: int) -> tuple[GpuSample, HostSample]:
        gpu = GpuSample(0, 400, 60, sm_pct=90, sm_clock_mhz=mhz, throttle_bits=bits)
        return gpu, HostSample(cpu_pct=97, mem_used_mib=64000)

    story.gutil(
        "n2",
        ("04:17:02", *poll(1980, 0)),
        ("04:17:12", *poll(1200, 4)),
        ("04:17:22", *poll(1000, 64)),
        ("05:17:22", *poll(345, 1)),
    )
    story.start()
    story.train(0, 30)
    slow = {"rank": 1, "node": "n2", "ratio": 1.9}
    story.add_event("summary", summary={"outcome": "finished", "steps": 30, "slow_ranks": [slow]})
    story.add_event("end", code=0)
    (found,) = record.read(str(story.write()))["attempts"][0]["slow_ranks"]
    assert found == slow | {
        "cost_pct": None,
        "seen": {
            "num_samples": 3,
            "sm_pct": 90.0,
            "power_w": 400.0,
            "temp_c": 60.0,
            "sm_clock_mhz": 1393.3,
            "throttle": ["power cap", "hardware thermal"],
            "cpu_pct": 97.0,
            "mem_used_mib": 64000.0,
        },
    }


def test_a_slow_rank_is_seen_on_the_gpu_that_the_log_names(story: Any) -> None:
    """Its local rank need not be the GPU's index."""
    readings = [("04:17:02", GpuSample(i, temp_c=50 + i), HostSample()) for i in (0, 1)]
    ranks = [RankSample(rank=7), RankSample(rank=1)]
    story.gutil("n2", *readings, ranks=ranks)
    story.start()
    story.train(0, 30)
    slow = {"rank": 1, "node": "n2", "ratio": 1.9}
    story.add_event("summary", summary={"outcome": "finished", "steps": 30, "slow_ranks": [slow]})
    story.add_event("end", code=0)
    (found,) = record.read(str(story.write()))["attempts"][0]["slow_ranks"]
    assert found["seen"]["temp_c"] == 51


def test_slow_ranks_of_a_killed_run_come_from_its_metrics(story: Any) -> None:
    """The worst ratio of each, without a summary; without a log of its node nothing was seen."""
    story.start()
    story.train(0, 30)
    for line, ratio in zip(story.metrics, (1.6, 2.5, 1.7), strict=True):
        line["slow_ranks"] = [{"rank": 1, "node": "n2", "ratio": ratio}]
    (found,) = record.read(str(story.write()))["attempts"][0]["slow_ranks"]
    assert found == {"rank": 1, "node": "n2", "ratio": 2.5, "cost_pct": None, "seen": {}}


def test_a_rank_slow_for_a_moment_is_none_of_a_killed_run(story: Any) -> None:
    """One line of three names it; and a summary that names none has the last word."""
    story.start()
    story.train(0, 30)
    story.metrics[1]["slow_ranks"] = [{"rank": 1, "node": "n2", "ratio": 9.0}]
    assert record.read(str(story.write()))["attempts"][0]["slow_ranks"] == []
    for line in story.metrics:
        line["slow_ranks"] = [{"rank": 1, "node": "n2", "ratio": 9.0}]
    story.add_event("summary", summary={"outcome": "finished", "steps": 30, "slow_ranks": []})
    assert record.read(str(story.write()))["attempts"][0]["slow_ranks"] == []


def test_the_last_metrics_of_every_attempt_are_found(tmp_path: Path) -> None:
    """However long the file is, an early attempt keeps its last lines."""
    lines = [
        json.dumps({"time": at(n), "attempt": 1 + n // 4000, "step": n, "pad": "x" * 100})
        for n in range(12000)
    ]
    lines.insert(5000, "torn{")
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    events = [
        {"time": at(n * 4000), "event": "start", "attempt": 1 + n, "host": "n1"} for n in range(3)
    ]
    (tmp_path / "events.jsonl").write_text("\n".join(map(json.dumps, events)))
    made = record.read(str(tmp_path))["attempts"]
    assert [one["last_step"] for one in made] == [3999, 7999, 11999]


def run(directory: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the batch script with two ranks in place."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    settings = {"DDP_PYTHON": sys.executable, "DDP_NPROC_PER_NODE": "2", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [ROOT / "jobs/prelaunch.sh", *args],
        cwd=directory,
        env=kept | settings | {"DDP_MONITOR_INTERVAL": "1"} | env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.slow
def test_a_real_run_adds_up(tmp_path: Path) -> None:
    """Two ranks in place: the parts are the wall time within 1 %, and most of it is reported."""
    done = run(tmp_path, "--max-steps", "120", "--log-every", "10", "--checkpoint-every", "50")
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("out/*/run.json")
    made = json.loads(path.read_text())
    events = [json.loads(line) for line in (path.parent / "events.jsonl").read_text().splitlines()]
    begin, end = (
        datetime.fromisoformat(next(e["time"] for e in events if e["event"] == name)).timestamp()
        for name in ("start", "end")
    )
    goodput = made["goodput"]
    assert goodput["wall_s"] == pytest.approx(end - begin, rel=0.01)
    assert sum(goodput[part] for part in PARTS) == pytest.approx(end - begin, rel=0.01)
    assert goodput["start_up_s"] > 0
    assert goodput["compute_s"] > 0
    assert goodput["unknown_s"] < 0.02 * goodput["wall_s"]
    assert made["steps_lost"] == 0
