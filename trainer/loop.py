"""The training loop. No device is waited for between log intervals."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

from trainer.batches import shard
from trainer.beat import BACKWARD, DATA, FORWARD, LOG, SAVE, UPDATE, VALIDATE
from trainer.errors import CheckpointError
from trainer.metrics import Interval, Validation, resident_mib
from trainer.state import gather_rank, gather_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

    from trainer.agreement import StopAgreement
    from trainer.batches import BatchPlan
    from trainer.beat import Beat
    from trainer.checkpoint import Checkpoints
    from trainer.config import Config
    from trainer.data import Batches
    from trainer.mesh import Mesh
    from trainer.metrics import Sinks
    from trainer.optim import Update
    from trainer.position import Position
    from trainer.profiling import StepProfiler
    from trainer.schedule import LearningRate
    from trainer.workloads.base import Workload

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What the loop works with; every part is built elsewhere."""

    config: Config
    mesh: Mesh
    plan: BatchPlan
    workload: Workload
    model: nn.Module
    """The model itself: saved, restored, validated."""
    train_model: nn.Module
    """The same one as it is trained: compiled, and within DistributedDataParallel."""
    update: Update
    learning_rate: LearningRate
    train: Batches
    test: Batches | None
    num_test_samples: int
    steps_per_epoch: int
    checkpoints: Checkpoints
    sinks: Sinks
    agreement: StopAgreement
    beat: Beat
    profiler: StepProfiler


class Loop:
    """Trains from a position to the last step, an early stop, or a request to stop."""

    def __init__(self, parts: Parts, position: Position, loss_sum: Tensor) -> None:
        """Go on from `position`; `loss_sum` is this rank's, of the interval that it lies in."""
        self._parts = parts
        self.position = position
        self.started_step = position.step
        parts.beat.step = position.step
        self._total_steps = parts.learning_rate.total_steps
        self._loss_sum = loss_sum
        self._started_s = time.perf_counter()
        self._interval_s = self._started_s
        self._interval_step = position.interval_step
        self._wait_s = 0.0
        self._microbatches: Iterator[tuple[Tensor, Tensor]] = iter(())
        self._microbatches_epoch = -1

    @property
    def train_time_s(self) -> float:
        """Seconds since training began, in this attempt, validation and checkpoints included."""
        return time.perf_counter() - self._started_s

    def run(self) -> bool:
        """Train; return whether the run is finished, False if it was asked to stop."""
        config = self._parts.config
        stopped = self._parts.agreement.reached(self.position.step)
        if not stopped:
            self._validate_if_due()  # a stop may have come before it
        while not stopped and self.position.step < self._total_steps and not self._is_stale():
            stopped = self._train_until_pause()
            if not stopped:
                self._validate_if_due()
            if self._is_due(config.checkpoint_every, besides=True):
                self._save()
        if not stopped and self.position.validated_step != self.position.step:
            self._validate()
        self._save()
        self._keep_last(is_finished=not stopped)
        self._parts.profiler.close()
        return not stopped

    def _keep_last(self, *, is_finished: bool) -> None:
        """Wait for the last checkpoint. Raises CheckpointError if a finished run has lost it."""
        checkpoints = self._parts.checkpoints
        if not checkpoints.wait() and is_finished:
            kept = checkpoints.latest_step
            raise CheckpointError(
                f"the last checkpoint, of step {self.position.step}, could not be written "
                f"({checkpoints.failure}); "
                + ("there is none" if kept is None else f"the last one there is: step {kept}")
            )

    def _is_stale(self) -> bool:
        patience = self._parts.config.early_stop_patience
        return 0 < patience <= self.position.num_validations_without_gain

    def _is_due(self, every: int, *, besides: bool = False) -> bool:
        """Whether it is time, every so many steps, or, with 0 or `besides`, at an epoch's end."""
        step = self.position.step
        at_epoch_end = step % self._parts.steps_per_epoch == 0
        return (every > 0 and step % every == 0) or (at_epoch_end and (besides or every == 0))

    def _validate_if_due(self) -> None:
        is_new = self.position.validated_step != self.position.step
        if is_new and self._is_due(self._parts.config.val_every):
            self._validate()

    def _train_until_pause(self) -> bool:
        """Train to the next validation, checkpoint or epoch's end; return whether to stop."""
        parts = self._parts
        epoch, step_in_epoch = divmod(self.position.step, parts.steps_per_epoch)
        if epoch != self._microbatches_epoch:
            self._microbatches = parts.train.epoch(epoch, step_in_epoch)
            self._microbatches_epoch = epoch
        log_every, reached, beat = parts.config.log_every, parts.agreement.reached, parts.beat
        parts.train_model.train()
        pause_step = self._pause_step()
        for step in range(self.position.step + 1, pause_step + 1):
            parts.profiler.before(step)
            self._train_step(step)
            beat.step = step
            parts.profiler.after(step)
            if step % log_every == 0 or step == self._total_steps:
                self._log(step, epoch + 1)
            if reached(step):
                self.position = replace(self.position, step=step)
                return True
        self.position = replace(self.position, step=pause_step)
        return False

    def _pause_step(self) -> int:
        step, config = self.position.step, self._parts.config
        periods = (self._parts.steps_per_epoch, config.val_every, config.checkpoint_every)
        nexts = [(step // period + 1) * period for period in periods if period]
        return min(*nexts, self._total_steps)

    def _train_step(self, step: int) -> None:
        parts, beat = self._parts, self._parts.beat
        num_microbatches = parts.plan.num_microbatches
        for number in range(1, num_microbatches + 1):
            beat.enter(DATA)
            asked_s = time.perf_counter()
            inputs, targets = next(self._microbatches)
            self._wait_s += time.perf_counter() - asked_s
            beat.enter(FORWARD)
            with self._without_reduction() if number < num_microbatches else _NOTHING:
                with self._autocast():
                    loss = parts.workload.loss(parts.train_model(inputs), targets)
                if num_microbatches > 1:
                    loss = loss / num_microbatches
                (beat.enter if number < num_microbatches else beat.meet)(BACKWARD)
                parts.update.scaler.scale(loss).backward()  # type: ignore[no-untyped-call] # torch's
            self._loss_sum += loss.detach()
        beat.enter(UPDATE)
        parts.update.apply(parts.learning_rate.at(step - 1))

    def _without_reduction(self) -> contextlib.AbstractContextManager[Any]:
        """Gradients of all microbatches but the last stay on their rank: one reduction a step."""
        model = self._parts.train_model
        return model.no_sync() if isinstance(model, DistributedDataParallel) else _NOTHING

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        dtype = _DTYPES.get(self._parts.config.precision)
        if dtype is None:
            return _NOTHING
        return torch.autocast(self._parts.mesh.device.type, dtype)

    def _log(self, step: int, epoch: int) -> None:
        """Reduce and tell the interval that ends with `step`; only here a device is awaited."""
        mesh, plan = self._parts.mesh, self._parts.plan
        self._parts.beat.meet(LOG)
        num_steps = step - self._interval_step
        num_timed = step - max(self._interval_step, self.started_step)  # in this attempt
        loss_sum, wait_s = mesh.sum([self._loss_sum.item(), self._wait_s])
        loss = loss_sum / (plan.world_size * num_steps)
        now_s = time.perf_counter()
        elapsed_s = now_s - self._interval_s
        self._parts.sinks.interval(
            Interval(
                step=step,
                epoch=epoch,
                loss=loss,
                lr=self._parts.learning_rate.at(step - 1),
                samples_per_s=num_timed * plan.global_batch_size / elapsed_s,
                data_wait_pct=100 * wait_s / plan.world_size / elapsed_s,
                memory_mib=_memory_mib(mesh.device),
                train_time_s=self.train_time_s,
            )
        )
        self.position = replace(self.position, step=step, last_loss=loss)  # a failure tells these
        self._interval_s, self._wait_s = now_s, 0.0
        if step % self._parts.config.log_every == 0:  # not at an end between: a run may go on
            self._loss_sum.zero_()
            self._interval_step = step

    def _validate(self) -> None:
        """Measure on the held-out samples; keep a checkpoint if it is the best so far."""
        parts, position = self._parts, self.position
        position = self.position = replace(position, validated_step=position.step)
        if parts.test is None:
            return
        began_s = time.perf_counter()
        loss, accuracy = self._measure(parts.test)
        best = position.best_accuracy
        is_best = best is None or accuracy > best
        self.position = replace(
            position,
            last_accuracy=accuracy,
            best_accuracy=accuracy if is_best else best,
            best_step=position.step if is_best else position.best_step,
            num_validations_without_gain=0
            if is_best
            else position.num_validations_without_gain + 1,
        )
        parts.sinks.validation(
            Validation(
                step=position.step,
                epoch=-(-position.step // parts.steps_per_epoch),
                test_loss=loss,
                test_accuracy=accuracy,
                num_samples=parts.num_test_samples,
                train_time_s=self.train_time_s,
            )
        )
        if is_best:
            self._save(is_best=True)
        self._interval_s += time.perf_counter() - began_s  # training did not go on meanwhile

    def _measure(self, test: Batches) -> tuple[float, float]:
        """Return mean loss and accuracy over all ranks' shares, each sample counted once."""
        parts = self._parts
        parts.beat.meet(VALIDATE)
        # Running statistics, such as a batch norm's, differ between ranks: all measure rank 0's.
        parts.mesh.broadcast(list(parts.model.buffers()))
        parts.model.eval()
        device = parts.mesh.device
        loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        correct = torch.zeros((), dtype=torch.int64, device=device)
        share = shard(parts.num_test_samples, parts.mesh.ranks.rank, parts.mesh.ranks.world_size)
        with torch.no_grad(), self._autocast():
            for inputs, targets in test.evaluation(share):
                parts.beat.enter(VALIDATE)
                outputs = parts.model(inputs)
                loss_sum += parts.workload.loss(outputs, targets) * len(targets)
                correct += parts.workload.num_correct(outputs, targets)
        parts.beat.meet(VALIDATE)
        totals = parts.mesh.sum([loss_sum.item(), correct.item(), len(share)])
        return totals[0] / totals[2], totals[1] / totals[2]

    def _save(self, *, is_best: bool = False) -> None:
        parts, began_s = self._parts, time.perf_counter()
        parts.beat.meet(SAVE)
        scaler = parts.update.scaler
        state = scaler.state_dict() if scaler.is_enabled() else None
        ranks, device = parts.mesh.ranks, parts.mesh.device
        parts.checkpoints.save(
            gather_tensors(parts.model, parts.update.optimizer, with_buffers=ranks.is_main)
            | gather_rank(ranks.rank, self._loss_sum, device),
            replace(self.position, scaler=state, interval_step=self._interval_step),
            is_best=is_best,
        )
        if not is_best:
            self._interval_s += time.perf_counter() - began_s


_NOTHING = contextlib.nullcontext()


def _memory_mib(device: torch.device) -> float:
    """Return the peak of allocated GPU memory, or this process's memory on a CPU, in MiB."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resident_mib()
