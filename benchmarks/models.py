"""The models as the tutorials write them; the trainer's own compute the same values."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class TutorialCnn(nn.Module):
    """The CNN of PyTorch's basic MNIST example, 1.2 M parameters, its dropout left out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Map images of shape (batch, 1, 28, 28) to logits of shape (batch, 10)."""
        x = functional.relu(self.conv1(images))
        x = functional.relu(self.conv2(x))
        x = torch.flatten(functional.max_pool2d(x, 2), 1)
        logits: Tensor = self.fc2(functional.relu(self.fc1(x)))
        return logits


def perceptron() -> nn.Module:
    """Return a 784-128-10 perceptron."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
