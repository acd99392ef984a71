"""What a run reports as metrics: its trainer's step, loss and speed, and its goodput."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from monitor.export.openmetrics import Metric
from monitor.runs import evidence, history, liveness, record
from rundir import paths
from rundir.events import read, read_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monitor.export.openmetrics import Metrics
    from rundir.events import Event

    Labels = Mapping[str, str | None]


KEYS = tuple(
    (key, divisor, Metric(f"ddp_trainer_{name}", text))
    for key, divisor, name, text in (
        ("step", 1, "step", "Optimizer updates done."),
        ("epoch", 1, "epoch", "The epoch, from 1."),
        ("loss", 1, "loss", "Mean loss of the last log interval."),
        ("lr", 1, "learning_rate", "Learning rate."),
        ("samples_per_s", 1, "samples_per_second", "Samples a second of all ranks."),
        ("tokens_per_s", 1, "tokens_per_second", "Tokens a second of all ranks."),
        ("flops_per_s", 1, "flops_per_second", "Model operations a second of all ranks."),
        ("mfu_pct", 100, "mfu_ratio", "Model FLOPs utilisation: share of the devices' peak."),
        ("data_wait_pct", 100, "data_wait_ratio", "Share of time spent waiting for data."),
        ("test_loss", 1, "test_loss", "Loss of the last validation."),
        ("test_accuracy", 1, "test_accuracy_ratio", "Accuracy of the last validation."),
    )
)
"""Keys of the trainer's lines, by what each is divided, and the metrics they become."""

STEP_TIME = Metric(
    "ddp_trainer_last_step_timestamp_seconds", "When a step was last reported, since 1970."
)
RUN_UP = Metric("ddp_run_up", "1 while the run goes on, 0 once it has ended.")
ATTEMPT = Metric("ddp_run_attempt", "The number of the run's last start, from 1.")
WORLD_SIZE = Metric("ddp_run_world_size", "Ranks of the last start.")
STEPS_LOST = Metric("ddp_run_steps_lost", "Steps that had to be done again.")
GOODPUT = Metric("ddp_run_goodput_ratio", "Share of the wall time spent on steps that count.")
TIME_SPENT = Metric("ddp_run_time_seconds", "Wall time by what it was spent on.")
CHECKPOINT_STEP = Metric("ddp_run_checkpoint_step", "Step of the last complete checkpoint.")


def events_of(run_dir: str) -> list[Event]:
    """Read what happened in a run; nothing where nothing is recorded."""
    try:
        return read(read_run(run_dir))[0]
    except OSError:
        return []


def job_in(events: Sequence[Event]) -> str | None:
    """Return the job of a run's last start; None where none is recorded."""
    jobs = [event.get("job_id") for event in events if event.get("event") == "start"]
    return next((job for job in reversed(jobs) if isinstance(job, str)), None)


def add(metrics: Metrics, run_dir: str, users: Mapping[str, str | None], *, now_s: float) -> None:
    """Add what a run reported last."""
    events = events_of(run_dir)
    composed = record.read(run_dir) if events else None
    job = job_in(events)
    name = os.path.basename(os.path.abspath(run_dir))
    labels = {"job": job, "user": users.get(job or ""), "run": name}
    if composed:
        state = _state(run_dir, composed["attempts"][-1], now_s)
        if state == "running":
            liveness.go_on(composed, now_s)
        _add_record(metrics, labels, composed, state in ("running", "restarting"))
    numbers = sorted({history.integer(event.get("attempt")) or 1 for event in events})
    path = os.path.join(run_dir, paths.METRICS)
    _add_lines(metrics, labels, evidence.last_metrics(path, numbers)[0])


def _state(run_dir: str, attempt: dict[str, Any], now_s: float) -> str:
    """Classify by its files and processes alone: Slurm is not asked every few seconds."""
    at_s = liveness.last_written_s(os.path.abspath(run_dir), attempt)
    quiet_s = None if at_s is None else max(0.0, now_s - at_s)
    return liveness.state(run_dir, attempt, None, quiet_s)


def _add_record(
    metrics: Metrics,
    labels: Labels,
    composed: Mapping[str, Any],
    goes_on: bool,  # noqa: FBT001 - a fact
) -> None:
    last, goodput = composed["attempts"][-1], composed["goodput"]
    metrics.put(RUN_UP, labels, float(goes_on))
    metrics.put(ATTEMPT, labels, last["attempt"])
    metrics.put(WORLD_SIZE, labels, history.finite(composed["world_size"]))
    metrics.put(STEPS_LOST, labels, history.finite(composed["steps_lost"]))
    pct = history.finite(goodput["goodput_pct"])
    metrics.put(GOODPUT, labels, None if pct is None else pct / 100)
    for part, seconds in goodput.items():
        if part.endswith("_s") and part != "wall_s":
            spent_on = {"spent_on": part.removesuffix("_s")}
            metrics.put(TIME_SPENT, {**labels, **spent_on}, history.finite(seconds))
    saved = [one["step"] for attempt in composed["attempts"] for one in attempt["checkpoints"]]
    metrics.put(CHECKPOINT_STEP, labels, history.finite(saved[-1]) if saved else None)


def _add_lines(metrics: Metrics, labels: Labels, lines: Sequence[Event]) -> None:
    """Add the last value of each key: a validation has other keys than an interval."""
    for key, divisor, metric in KEYS:
        values = (history.finite(line.get(key)) for line in reversed(lines))
        value = next((value for value in values if value is not None), None)
        metrics.put(metric, labels, None if value is None else value / divisor)
    stepped_s = history.times(line for line in lines if "step" in line)
    metrics.put(STEP_TIME, labels, stepped_s[-1] if stepped_s else None)
