"""The plain loop's parts in Lightning's Trainer: no logger, bar, checkpoint or validation."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING, Any

import lightning
import torch
from torch.nn.functional import cross_entropy

from benchmarks.contestant import serve
from benchmarks.plain import build_loader
from benchmarks.task import LEARNING_RATE

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from benchmarks.task import Stopwatch, Task


class Digits(lightning.LightningModule):  # type: ignore[misc] # it ships no types to this checker
    """Model, loss and optimizer."""

    def __init__(self, task: Task, watch: Stopwatch) -> None:
        super().__init__()
        self.model = task.build_model()
        self.watch = watch

    def training_step(self, batch: tuple[Tensor, Tensor], _batch_idx: int) -> Tensor:
        """Return the loss."""
        inputs, targets = batch
        return cross_entropy(self.model(inputs), targets)

    def on_train_batch_end(self, outputs: dict[str, Tensor], *_: object) -> None:
        """Report the step to the watch."""
        self.watch.step_done(outputs["loss"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), lr=LEARNING_RATE)


def train(task: Task, digits: Path, watch: Stopwatch) -> None:
    """Train for the task's steps."""
    trainer: Any = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=task.total_steps,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        limit_val_batches=0,
    )
    trainer.fit(Digits(task, watch), build_loader(task, digits))


if __name__ == "__main__":
    logging.getLogger("lightning").setLevel(logging.ERROR)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")  # advice on loader workers
    serve(train)
