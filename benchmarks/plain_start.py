"""The shortest program that takes a first step on the shipped digits, for its start alone.

Prints the seconds since the epoch at which the step had ended. What it takes beyond
`import torch` is torch's own: its first convolution and its first backward pass.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from trainer.workloads import mnist_models
from trainer.workloads.mnist import read_idx

_DIGITS = Path(__file__).parent.parent / "trainer" / "workloads" / "digits"
_BATCH_SIZE = 64  # the trainer's default


def main() -> None:
    """Read, normalise, build, step."""
    images = read_idx(_DIGITS / "train-images-idx3-ubyte.gz", 3)
    labels = read_idx(_DIGITS / "train-labels-idx1-ubyte.gz", 1)
    inputs = torch.frombuffer(bytearray(images.data), dtype=torch.uint8)
    inputs = (inputs.view(-1, 1, 28, 28).float() / 255 - 0.1307) / 0.3081
    targets = torch.frombuffer(bytearray(labels.data), dtype=torch.uint8).long()
    model = mnist_models.cnn()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    loss = cross_entropy(model(inputs[:_BATCH_SIZE]), targets[:_BATCH_SIZE])
    loss.backward()  # type: ignore[no-untyped-call] # torch's gap
    optimizer.step()
    loss.item()
    print(time.time())


if __name__ == "__main__":
    main()
