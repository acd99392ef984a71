"""The summary at a run's end, for the record and for a person."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from rundir import paths
from rundir.events import finite
from rundir.text import counted
from trainer.checkpoint.train_state import TrainState
from trainer.loop.expected_memory import size_text
from trainer.telemetry.metrics import figures_of
from trainer.telemetry.speed import Speed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trainer.checkpoint.checkpoints import Checkpoints
    from trainer.loop.loop import Loop


def summary_of(
    outcome: str,
    loop: Loop | None,
    checkpoints: Checkpoints | None,
    *,
    world_size: int,
    global_batch_size: int,
) -> dict[str, object]:
    """Return the record's summary, also of a run that failed before it had a loop.

    `samples_per_s` is over all of this attempt's time, validation and checkpoints included.
    """
    state = TrainState(seed=0, global_batch_size=global_batch_size, num_train_samples=0)
    derived: Mapping[str, float] = {}
    time_s, step, num_steps = 0.0, 0, 0
    if loop is not None:
        time_s, state, derived = loop.progress.train_time_s, loop.state, loop.derived
        step = loop.step
        num_steps = step - loop.started_step
    samples_per_s = num_steps * global_batch_size / time_s if time_s else 0.0
    speed = asdict(loop.progress.work.speed(samples_per_s)) if loop else {}
    best = None
    if checkpoints is not None and state.best_step is not None:
        best = checkpoints.path_of_best(state.best_step)
    return {
        "outcome": outcome,
        "ended_by": _ended_by(outcome, loop),
        "train_time_s": round(time_s, 3),
        "samples_per_s": round(samples_per_s, 1),
        **{name: round(value, 1) for name, value in speed.items() if value is not None},
        "final_loss": finite(state.last_loss),
        "test_accuracy": state.last_accuracy,
        "test_loss": finite(state.last_test_loss),
        **{name: finite(value) for name, value in derived.items()},
        "best_step": state.best_step,
        "best_accuracy": state.best_accuracy,
        "best_test_loss": finite(state.best_test_loss),
        "best_checkpoint": str(best) if best else None,
        "num_validations_without_gain": state.num_validations_without_gain,
        "world_size": world_size,
        "steps": step,
        "checkpoint_step": checkpoints.latest_step if checkpoints else None,
        "non_finite_steps": loop.progress.non_finite.num_steps if loop else 0,
        "peak_memory_bytes": loop.peak_memory_bytes if loop else None,
        "slow_ranks": loop.progress.stragglers.over_the_run() if loop else [],
    }


def _ended_by(outcome: str, loop: Loop | None) -> str:
    """Name what ended a run; the event of a failure has more."""
    if outcome != "finished" or loop is None:
        return {"stopped": "request"}.get(outcome, "failure")
    return "early_stop" if loop.stops_early and not loop.is_at_last_step else "last_step"


def closing_block(summary: dict[str, Any], run_dir: Path) -> str:
    """Render a summary for a person."""
    loss = summary["final_loss"]
    loss_text = f"{loss:.4f}" if isinstance(loss, float) else "-"
    notes = [
        f"  slow         rank {slow['rank']} on {slow['node']} was {slow['ratio']:.1f} x slower "
        f"than the median rank, which costs {slow['cost_pct']:.0f} % of each step"
        for slow in summary["slow_ranks"]
    ]
    if summary["peak_memory_bytes"] is not None:
        peak = size_text(summary["peak_memory_bytes"])
        notes.append(f"  memory       {peak} at most on rank 0")
    if summary["non_finite_steps"]:
        notes.append(
            f"  not finite   the loss or gradient of {counted(summary['non_finite_steps'], 'step')}"
        )
    ranks = counted(summary["world_size"], "rank")
    return "\n".join(
        [
            "",
            f"{summary['outcome'].upper()}  {_measured(summary)}",
            f"  loss         {loss_text}",
            f"  steps        {summary['steps']} on {ranks}{_why(summary)}",
            f"  time         {summary['train_time_s']} s, {', '.join(_speed(summary))}",
            *notes,
            *_best(summary),
            f"  metrics      {run_dir / paths.METRICS}",
            f"  checkpoints  {run_dir / paths.CHECKPOINTS}",
        ]
    )


def _why(summary: Mapping[str, Any]) -> str:
    """Explain why there were no more steps."""
    in_vain = counted(summary["num_validations_without_gain"], "validation")
    return {
        "early_stop": f", ended early: {in_vain} in a row without a gain (--early-stop-patience)",
        "last_step": ", the last one",
        "request": ", ended on request",
    }.get(summary["ended_by"], "")


def _best(summary: Mapping[str, Any]) -> list[str]:
    """Name the best step, by what measure, and its checkpoint."""
    accuracy, loss = summary["best_accuracy"], summary["best_test_loss"]
    if summary["best_step"] is None:
        return []
    measure = f"test loss {loss:.4f}" if isinstance(loss, float) else "a test loss not finite"
    if isinstance(accuracy, float):
        measure = f"test accuracy {100 * accuracy:.2f} %, {measure}"
    take = summary["best_checkpoint"] or "its checkpoint could not be kept"
    return [f"  best         step {summary['best_step']}, {measure}: {take}"]


def _speed(summary: Mapping[str, Any]) -> list[str]:
    names = [field.name for field in fields(Speed)]
    speed = Speed(**{name: summary[name] for name in names if name in summary})
    return [f"{summary['samples_per_s']} samples/s", *speed.texts()]


def _measured(summary: Mapping[str, Any]) -> str:
    """Describe how good the model was when last measured."""
    figures = {k: v for k, v in summary.items() if k.startswith("test_") and isinstance(v, float)}
    if "test_accuracy" in figures:
        figures = {"test_accuracy": figures["test_accuracy"]}
    elif "test_loss" not in figures:
        is_measured = summary["num_validations_without_gain"]
        return "a test loss not finite" if is_measured else "nothing held out was measured"
    return "  ".join(figures_of(figures))


def out_of_time(left_s: float, checkpoints: Checkpoints) -> str:
    """Report that there is no time for another checkpoint, and which one counts."""
    took_s, kept = checkpoints.last_seconds, checkpoints.latest_step
    took = "none was written yet" if took_s is None else f"the last took {took_s:.1f} s"
    counts = "none counts, the run begins anew" if kept is None else f"step {kept} counts"
    return f"{left_s:.1f} s left, {took}; {counts}"
