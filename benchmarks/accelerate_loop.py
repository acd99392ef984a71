"""The plain loop, prepared by Accelerate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from accelerate import Accelerator
from torch.nn.functional import cross_entropy

from benchmarks.contestant import serve
from benchmarks.plain import build_loader
from benchmarks.task import LEARNING_RATE

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.task import Stopwatch, Task


def train(task: Task, digits: Path, watch: Stopwatch) -> None:
    """Train for the task's steps, as Accelerate's quick tour shows it."""
    accelerator = Accelerator(cpu=True)
    model = task.build_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    model, optimizer, loader = accelerator.prepare(model, optimizer, build_loader(task, digits))
    model.train()
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        if watch.step_done(loss):
            return


if __name__ == "__main__":
    serve(train)
