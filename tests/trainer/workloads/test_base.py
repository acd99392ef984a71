"""What a workload does unless it says otherwise."""

import torch
from torch import nn

from trainer.config import Config
from trainer.workloads.base import TensorData, Workload


class Plain(Workload):
    """All that must be defined."""

    def build_model(self) -> nn.Module:
        """Return any."""
        return nn.Linear(1, 1)

    def train_data(self) -> TensorData:
        """Return any."""
        return TensorData(inputs=torch.ones(1, 1), targets=torch.ones(1))

    def test_data(self) -> None:
        """Hold nothing out."""


def test_only_classes_are_right_or_wrong() -> None:
    """The largest output is compared with a class, never with a number to come near to."""
    outputs, workload = torch.tensor([[0.0, 2.0], [1.0, 0.0]]), Plain(Config())
    assert workload.num_correct(outputs, torch.tensor([1, 1])) == 1
    assert workload.num_correct(outputs, torch.tensor([1.0, 1.0])) is None
