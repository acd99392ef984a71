"""One optimizer step: data, forward, backward, update. Nothing in here waits for the device."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Protocol

import torch

from trainer.loop.loss_scaling import choose_normaliser
from trainer.loop.nonfinite import StepTable, one_if_finite
from trainer.parallel.gradients import choose_pass
from trainer.parallel.plan import modules_named
from trainer.parallel.precision import autocast
from trainer.telemetry.heartbeat import BACKWARD, DATA, FORWARD, UPDATE
from trainer.telemetry.stragglers import ForwardTime
from trainer.workloads.checks import loss_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from trainer.loop.components import Parts


class Stepper:
    """Takes steps, on the samples that follow."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        log_every, device = parts.config.log_every, parts.mesh.device
        self.table = StepTable(log_every, device)
        self.wait_s = 0.0
        """Seconds this rank has waited for data."""
        self.forward_time: ForwardTime | None = None
        """None for a single rank, which is as fast as it is, and where all forwards wait."""
        if parts.timed:
            num_forwards = log_every * parts.plan.num_microbatches
            self.forward_time = ForwardTime(parts.timed, device, num_forwards, _even_ratio(parts))
        self.left_out: frozenset[int] = frozenset()
        """Steps that are passed over."""
        self._microbatches: Iterator[tuple[Tensor, Tensor]] = iter(())
        self._epoch = -1
        self._passes = choose_passes(parts, self.table)

    def seek(self, step: int) -> None:
        """Get ready for the samples that follow `step` steps; with -1, forget where we were."""
        epoch, step_in_epoch = divmod(step, self._parts.steps_per_epoch)
        if epoch != self._epoch:
            self._microbatches = (
                self._parts.train.epoch(epoch, step_in_epoch) if step >= 0 else iter(())
            )
            self._epoch = epoch

    def take(self, step: int) -> None:
        """Take step `step`, counted from 1, or pass it over."""
        if step in self.left_out:
            self._leave_out()
            return
        parts, table = self._parts, self.table
        self._passes(step, self._next)
        parts.beat.enter(UPDATE)
        parts.update.apply(parts.learning_rate.at(step - 1), table.found, table.norm)
        table.next_step()

    def _leave_out(self) -> None:
        """Take a step's samples, and do not train on them."""
        for _ in range(self._parts.plan.num_microbatches):
            self._next()
        self.table.next_step()

    def _next(self) -> tuple[Tensor, Tensor]:
        self._parts.beat.enter(DATA)
        asked_s = time.perf_counter()
        microbatch = next(self._microbatches)
        self.wait_s += time.perf_counter() - asked_s
        return microbatch


def _even_ratio(parts: Parts) -> float:
    """Return the layers of an even share of the pipeline by those of this rank's."""
    sizes, pp = parts.workload.parallel_sizes(), parts.mesh.layout.pp
    if pp == 1 or sizes is None:
        return 1.0
    own = modules_named(parts.model, parts.workload.parallel_plan().blocks)
    return sizes.num_layers / pp / len(own)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from trainer.loop.components import Parts
    from trainer.parallel.pipeline import Pipeline

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
