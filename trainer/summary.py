"""How a run ended: the record's summary, and the same for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.events import finite

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.loop import Loop


def summarise(
    outcome: str, loop: Loop | None, *, world_size: int, global_batch_size: int
) -> dict[str, object]:
    """Return the record's summary, also of a run that failed before it had a loop.

    `samples_per_s` is over all of this attempt's time, validation and checkpoints included.
    """
    if loop is None:
        time_s, position, steps = 0.0, None, 0
    else:
        time_s, position = loop.train_time_s, loop.position
        steps = position.step - loop.started_step
    num_samples = steps * global_batch_size
    return {
        "outcome": outcome,
        "train_time_s": round(time_s, 3),
        "samples_per_s": round(num_samples / time_s, 1) if time_s else 0.0,
        "final_loss": finite(position.last_loss) if position else None,
        "test_accuracy": position.last_accuracy if position else None,
        "world_size": world_size,
        "steps": position.step if position else 0,
    }


def closing_block(summary: dict[str, object], run_dir: Path) -> str:
    """Say a summary to a person."""
    accuracy, loss = summary["test_accuracy"], summary["final_loss"]
    told_accuracy = f"{100 * accuracy:.2f} %" if isinstance(accuracy, float) else "never measured"
    told_loss = f"{loss:.4f}" if isinstance(loss, float) else "-"
    return "\n".join(
        [
            "",
            f"{str(summary['outcome']).upper()}  test accuracy {told_accuracy}",
            f"  loss         {told_loss}",
            f"  steps        {summary['steps']} on {summary['world_size']} ranks",
            f"  time         {summary['train_time_s']} s, {summary['samples_per_s']} samples/s",
            f"  metrics      {run_dir / 'metrics.jsonl'}",
            f"  checkpoints  {run_dir / 'checkpoints'}",
        ]
    )
