"""The plain loop, by hand: tensors in a TensorDataset, DataLoader, Adam."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.contestant import serve
from benchmarks.digits import load_tensors
from benchmarks.task import LEARNING_RATE

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from benchmarks.task import Stopwatch, Task


def build_loader(task: Task, digits: Path) -> DataLoader[Any]:
    """Return what Lightning and Accelerate are given, too."""
    dataset = TensorDataset(*load_tensors(digits))
    return DataLoader(dataset, batch_size=task.batch_size, shuffle=True)


def train_on(loader: DataLoader[Any], model: nn.Module, watch: Stopwatch) -> None:
    """Train until the watch has seen enough."""
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    model.train()
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call] # torch's gap
        optimizer.step()
        if watch.step_done(loss):
            return


def train(task: Task, digits: Path, watch: Stopwatch) -> None:
    """Train for the task's steps."""
    train_on(build_loader(task, digits), task.build_model(), watch)


if __name__ == "__main__":
    serve(train)
