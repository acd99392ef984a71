"""Measuring a model on the held-out samples, each of them once, over all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trainer.data import generators
from trainer.data.batch_plan import shard
from trainer.parallel.precision import autocast
from trainer.telemetry.heartbeat import VALIDATE
from trainer.workloads.checks import loss_of

if TYPE_CHECKING:
    from torch import Tensor, nn

    from trainer.config import Precision
    from trainer.data.batches import Batches
    from trainer.distributed.mesh import Mesh
    from trainer.loop.stop import StopConsensus
    from trainer.telemetry.heartbeat import Heartbeat
    from trainer.workloads.base import Workload


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a validation came to, over all ranks."""

    loss: float
    """The mean over all that counts: samples, or targets where the workload counts those."""
    accuracy: float | None
    """None where there is no right and wrong."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The samples, and what it takes to measure on them."""

    workload: Workload
    model: nn.Module
    test: Batches
    precision: Precision
    mesh: Mesh
    consensus: StopConsensus
    heartbeat: Heartbeat

    def measure(self) -> Measured | None:
        """Measure; return None if the run was asked to stop meanwhile."""
        self.heartbeat.collective(VALIDATE)
        # Running statistics, such as a batch norm's, differ between ranks: all measure rank 0's.
        self.mesh.broadcast(list(self.model.buffers()))
        self.model.eval()
        # Whatever is drawn here, training goes on as if nothing had been, also after half of it.
        with generators.undisturbed(self.mesh.device):
            sums = self._sums()
        if sums is None:
            return None
        self.heartbeat.collective(VALIDATE)
        loss_sum, num_counted, num_correct, has_accuracy = self.mesh.sum_over_samples(sums)
        return Measured(
            loss=loss_sum / max(1, num_counted),
            accuracy=num_correct / self.test.num_samples if has_accuracy else None,
        )

    def _sums(self) -> list[float] | None:
        """Sum over this rank's share; None if asked to stop.

        Loss, what it is to be divided by, right answers, and whether there are such.
        """
        device = self.mesh.device
        loss_sum, num_counted, num_correct = torch.zeros(3, dtype=torch.float64, device=device)
        has_accuracy = False
        share = shard(self.test.num_samples, self.mesh.dp_rank, self.mesh.layout.dp_size)
        batches = iter(self.test.evaluation(share))
        num_ticks = self._num_ticks()
        self.consensus.begin()
        with torch.no_grad(), autocast(self.precision, device):
            for tick in range(1, num_ticks + 1):
                self.heartbeat.enter(VALIDATE)
                batch = next(batches, None)
                outputs = self._outputs(batch)
                if batch is not None and outputs is not None:
                    _, targets = batch
                    loss, count = self._loss_sum(outputs, targets)
                    loss_sum += loss
                    num_counted += count
                    correct = self.workload.num_correct(outputs, targets)
                    if correct is not None:
                        has_accuracy = True
                        num_correct += correct
                if tick < num_ticks and self.consensus.reached():
                    return None
        return [loss_sum.item(), num_counted.item(), num_correct.item(), has_accuracy]

    def _loss_sum(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | int]:
        """Return a batch's loss as a sum, and how many are summed up in it."""
        loss = loss_of(self.workload, outputs, targets)
        num_valid = self.workload.num_valid(targets)
        if num_valid is None:  # a mean over samples
            return loss * len(targets), len(targets)
        return loss, num_valid

    def _outputs(self, batch: tuple[Tensor, Tensor] | None) -> Tensor | None:
        """Return the outputs for a batch; None where another stage of a pipeline has them."""
        if batch is not None:
            inputs, _ = batch
            outputs: Tensor | None = self.model(inputs)
            return outputs
        if self.mesh.layout.is_sharded:
            # Computed for nothing: the others need this rank's part of the model, or of a matrix.
            inputs, _ = next(iter(self.test.evaluation(range(1))))
            self.model(inputs)
        return None

    def _num_ticks(self) -> int:
        """Batches of the rank that has the most: all ranks ask as often, with or without one."""
        largest_share = -(-self.test.num_samples // self.mesh.layout.dp_size)
        return -(-largest_share // self.test.evaluation_batch_size)
