"""One optimizer step: data, forward, backward, update. Nothing in here waits for the device."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import torch

from trainer.loop.loss_scaling import choose_loss_scaling
from trainer.loop.nonfinite import StepTable, one_if_finite
from trainer.parallel.gradients import choose_pass
from trainer.parallel.plan import modules_named
from trainer.parallel.precision import autocast
from trainer.telemetry.heartbeat import BACKWARD, DATA, FORWARD, UPDATE
from trainer.telemetry.stragglers import ForwardTime
from trainer.workloads.checks import loss_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from trainer.loop.components import Components
    from trainer.parallel.pipeline import Pipeline

    NextMicrobatch = Callable[[], tuple[Tensor, Tensor]]


class Stepper:
    """Takes steps, on the samples that follow."""

    def __init__(self, components: Components) -> None:
        self._components = components
        log_every, device = components.config.log_every, components.mesh.device
        self.table = StepTable(log_every, device)
        self.wait_s = 0.0
        """Seconds this rank has waited for data."""
        self.forward_time: ForwardTime | None = None
        """None for a single rank, which is as fast as it is, and where all forwards wait."""
        if components.trained.timed:
            num_forwards = log_every * components.plan.num_microbatches
            self.forward_time = ForwardTime(
                components.trained.timed, device, num_forwards, _even_ratio(components)
            )
        self.skipped: frozenset[int] = frozenset()
        """Steps that are skipped."""
        self._microbatches: Iterator[tuple[Tensor, Tensor]] = iter(())
        self._epoch = -1
        self._passes = choose_forward_backward(components, self.table)

    def seek(self, step: int) -> None:
        """Get ready for the samples that follow `step` steps; with -1, forget where we were."""
        epoch, step_in_epoch = divmod(step, self._components.steps_per_epoch)
        if epoch != self._epoch:
            self._microbatches = (
                self._components.train.epoch(epoch, step_in_epoch) if step >= 0 else iter(())
            )
            self._epoch = epoch

    def take(self, step: int) -> None:
        """Take step `step`, counted from 1, or skip it."""
        if step in self.skipped:
            self._skip()
            return
        components, table = self._components, self.table
        self._passes(step, self._next)
        components.snapshots.wait_for_copy()
        components.heartbeat.enter(UPDATE)
        components.trained.update.apply(
            components.learning_rate.at(step - 1), table.found, table.norm
        )
        table.next_step()

    def _skip(self) -> None:
        """Take a step's samples, and do not train on them."""
        for _ in range(self._components.plan.num_microbatches):
            self._next()
        self.table.next_step()

    def _next(self) -> tuple[Tensor, Tensor]:
        self._components.heartbeat.enter(DATA)
        asked_s = time.perf_counter()
        microbatch = next(self._microbatches)
        self.wait_s += time.perf_counter() - asked_s
        return microbatch


def _even_ratio(components: Components) -> float:
    """Return the layers of an even share of the pipeline by those of this rank's."""
    sizes, pp = components.workload.parallel_sizes(), components.mesh.layout.pp
    if pp == 1 or sizes is None:
        return 1.0
    own = modules_named(components.trained.model, components.workload.parallel_plan().blocks)
    return sizes.num_layers / pp / len(own)


class MicrobatchLoop:
    """Leaves a step's gradient at the parameters, and its losses in the table.

    Each microbatch goes forward and backward before the next.
    """

    def __init__(self, components: Components, table: StepTable) -> None:
        self._components = components
        self._table = table
        self._loss_scaling = choose_loss_scaling(components)
        self._pass = choose_pass(components.trained.train_model, components.plan.num_microbatches)

    def __call__(self, step: int, next_microbatch: NextMicrobatch) -> None:
        """Take the microbatches of step `step`, which `next_microbatch` returns."""
        components, heartbeat = self._components, self._components.heartbeat
        num_microbatches = components.plan.num_microbatches
        next_microbatch = self._loss_scaling.begin(step, next_microbatch)
        for number in range(1, num_microbatches + 1):
            inputs, targets = next_microbatch()
            heartbeat.enter(FORWARD)
            with self._pass(number == num_microbatches):
                with autocast(components.config.precision, components.mesh.device):
                    loss = loss_of(
                        components.workload, components.trained.train_model(inputs), targets
                    )
                loss = self._loss_scaling.share(loss)
                one = self._table.add_loss(loss)
                (heartbeat.enter if number < num_microbatches else heartbeat.collective)(BACKWARD)
                # As a factor: given to backward() itself, torch would import sympy, half a second.
                (components.trained.update.scaler.scale(loss) * one).backward()  # type: ignore[no-untyped-call] # torch's


class ThroughPipeline:
    """The same, all microbatches through all stages, as a schedule has it.

    A rank that waits for another stage is in the phase `backward`, as one that waits for gradients
    to be reduced is; `forward` is its own.
    """

    def __init__(self, components: Components, table: StepTable, pipeline: Pipeline) -> None:
        self._components = components
        self._table = table
        self._pipeline = pipeline
        self._loss_scaling = choose_loss_scaling(components)
        self._one = torch.ones((), device=components.mesh.device)
        self._scale = self._one
        """fp16's, of this step: asked for on every rank, for all of them undo it."""
        pipeline.around = self._computing
        pipeline.prepare(components.plan.num_microbatches, self._loss)

    def __call__(self, step: int, next_microbatch: NextMicrobatch) -> None:
        """Take the step's microbatches."""
        components = self._components
        next_microbatch = self._loss_scaling.begin(step, next_microbatch)
        microbatches = [next_microbatch() for _ in range(components.plan.num_microbatches)]
        self._scale = components.trained.update.scaler.scale(self._one)
        components.heartbeat.collective(BACKWARD)
        for loss in self._pipeline.step(microbatches):
            # A step's loss is the mean over all ranks, and those of other stages have none.
            self._table.add_loss(loss / self._scale * components.mesh.layout.pp)

    @contextlib.contextmanager
    def _computing(self) -> Iterator[None]:
        self._components.heartbeat.enter(FORWARD)
        with autocast(self._components.config.precision, self._components.mesh.device):
            yield
        self._components.heartbeat.enter(BACKWARD)

    def _loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        with autocast(self._components.config.precision, self._components.mesh.device):
            loss = loss_of(self._components.workload, outputs, targets)
        loss = self._loss_scaling.share(loss)
        return loss * self._scale * one_if_finite(self._one, loss.detach())


def choose_forward_backward(
    components: Components, table: StepTable
) -> MicrobatchLoop | ThroughPipeline:
    """Choose by the layout."""
    if components.mesh.layout.pp == 1:
        return MicrobatchLoop(components, table)
    from trainer.parallel.pipeline import Pipeline  # noqa: PLC0415 -- for pipelines only

    assert isinstance(components.trained.train_model, Pipeline)  # noqa: S101 -- see parallelize.py
    return ThroughPipeline(components, table, components.trained.train_model)
