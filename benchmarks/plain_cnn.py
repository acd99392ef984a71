"""The plain loop with the trainer's CNN: how much of its speed is in the model's form alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.contestant import serve
from benchmarks.plain import build_loader, train_on
from trainer.workloads import mnist_models

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.task import Stopwatch, Task


def train(task: Task, digits: Path, watch: Stopwatch) -> None:
    """Train for the task's steps."""
    train_on(build_loader(task, digits), mnist_models.cnn(), watch)


if __name__ == "__main__":
    serve(train)
