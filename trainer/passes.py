"""The microbatches of one step, forward and backward: one after another, or through a pipeline."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

import torch

from trainer.beat import BACKWARD, FORWARD
from trainer.nonfinite import one_if_finite
from trainer.normalising import choose_normaliser
from trainer.parallel.accumulation import choose_pass
from trainer.precision import autocast
from trainer.workload_checks import loss_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from trainer.nonfinite import StepTable
    from trainer.parallel.pipeline import Pipeline
    from trainer.parts import Parts

    Next = Callable[[], tuple[Tensor, Tensor]]


class Passes(Protocol):
    """Leaves a step's gradient at the parameters, and its losses in the table."""

    def __call__(self, step: int, following: Next) -> None:
        """Take the microbatches of step `step`, which `following` returns."""


class InTurn:
    """Each microbatch forward and backward before the next."""

    def __init__(self, parts: Parts, table: StepTable) -> None:
        self._parts = parts
        self._table = table
        self._normaliser = choose_normaliser(parts)
        self._pass = choose_pass(parts.train_model, parts.plan.num_microbatches)

    def __call__(self, step: int, following: Next) -> None:
        """Take the step's microbatches."""
        parts, beat = self._parts, self._parts.beat
        num_microbatches = parts.plan.num_microbatches
        following = self._normaliser.begin(step, following)
        for number in range(1, num_microbatches + 1):
            inputs, targets = following()
            beat.enter(FORWARD)
            with self._pass(number == num_microbatches):
                with autocast(parts.config.precision, parts.mesh.device):
                    loss = loss_of(parts.workload, parts.train_model(inputs), targets)
                loss = self._normaliser.share(loss)
                one = self._table.add_loss(loss)
                (beat.enter if number < num_microbatches else beat.meet)(BACKWARD)
                # As a factor: given to backward() itself, torch would import sympy, half a second.
                (parts.update.scaler.scale(loss) * one).backward()  # type: ignore[no-untyped-call] # torch's


class ThroughPipeline:
    """All microbatches through all stages, as a schedule has it.

    A rank that waits for another stage is in the phase `backward`, as one that waits for gradients
    to be reduced is; `forward` is its own.
    """

    def __init__(self, parts: Parts, table: StepTable, pipeline: Pipeline) -> None:
        self._parts = parts
        self._table = table
        self._pipeline = pipeline
        self._normaliser = choose_normaliser(parts)
        self._one = torch.ones((), device=parts.mesh.device)
        self._scale = self._one
        """fp16's, of this step: asked for on every rank, for all of them undo it."""
        pipeline.around = self._computing
        pipeline.prepare(parts.plan.num_microbatches, self._loss)

    def __call__(self, step: int, following: Next) -> None:
        """Take the step's microbatches."""
        parts = self._parts
        following = self._normaliser.begin(step, following)
        microbatches = [following() for _ in range(parts.plan.num_microbatches)]
        self._scale = parts.update.scaler.scale(self._one)
        parts.beat.meet(BACKWARD)
        for loss in self._pipeline.step(microbatches):
            # A step's loss is the mean over all ranks, and those of other stages have none.
            self._table.add_loss(loss / self._scale * parts.mesh.layout.pp)

    @contextlib.contextmanager
    def _computing(self) -> Iterator[None]:
        self._parts.beat.enter(FORWARD)
        with autocast(self._parts.config.precision, self._parts.mesh.device):
            yield
        self._parts.beat.enter(BACKWARD)

    def _loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        with autocast(self._parts.config.precision, self._parts.mesh.device):
            loss = loss_of(self._parts.workload, outputs, targets)
        loss = self._normaliser.share(loss)
        return loss * self._scale * one_if_finite(self._one, loss.detach())


def choose_passes(parts: Parts, table: StepTable) -> Passes:
    """Choose by the layout."""
    if parts.mesh.layout.pp == 1:
        return InTurn(parts, table)
    from trainer.parallel.pipeline import Pipeline  # noqa: PLC0415 -- for pipelines only

    assert isinstance(parts.train_model, Pipeline)  # noqa: S101 -- see spread.py
    return ThroughPipeline(parts, table, parts.train_model)
