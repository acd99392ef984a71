"""What a hand can reach: tensors in memory, indexed by batch, and a fused Adam."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy

from benchmarks.contestant import serve
from benchmarks.digits import load_tensors
from benchmarks.task import LEARNING_RATE

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.task import Stopwatch, Task


def train(task: Task, digits: Path, watch: Stopwatch) -> None:
    """Train for the task's steps."""
    inputs, targets = load_tensors(digits)
    model = task.build_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True)
    model.train()
    for chosen in torch.split(torch.randperm(len(targets)), task.batch_size):
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs[chosen]), targets[chosen])
        loss.backward()  # type: ignore[no-untyped-call] # torch's gap
        optimizer.step()
        if watch.step_done(loss):
            return


if __name__ == "__main__":
    serve(train)
