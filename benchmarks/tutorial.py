"""The plain loop with the tutorials' data: torchvision's MNIST, and transforms for each sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader
from torchvision import datasets, transforms

from benchmarks.contestant import serve
from benchmarks.plain import train_on

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.task import Stopwatch, Task


def train(task: Task, digits: Path, watch: Stopwatch) -> None:
    """Train for the task's steps."""
    transform = transforms.Compose(
        [transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))]
    )
    dataset = datasets.MNIST(str(digits), train=True, transform=transform)
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=task.batch_size, shuffle=True)
    train_on(loader, task.build_model(), watch)


if __name__ == "__main__":
    serve(train)
