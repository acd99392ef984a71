"""The training loop: what happens when. No device is waited for between log intervals."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from trainer.checkpoint.tensors import gather_rank, gather_tensors
from trainer.errors import RunFailedError
from trainer.loop.memory import MemoryReport, peak_bytes
from trainer.loop.progress import Progress, RollBack
from trainer.loop.replicas import check_replicas
from trainer.loop.train_step import Stepper
from trainer.telemetry.heartbeat import AGREE, LOAD, LOG, SAVE
from trainer.telemetry.metrics import Validation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from trainer.checkpoint.resume import Resumed
    from trainer.checkpoint.train_state import TrainState
    from trainer.loop.components import Components


class Loop:
    """Trains from a train state to the last step, an early stop, or a request to stop."""

    def __init__(self, components: Components, resumed: Resumed) -> None:
        self._components = components
        self._total_steps = components.learning_rate.total_steps
        self._stepper = Stepper(components)
        self.progress = Progress(components, self._stepper)
        self._memory = MemoryReport(components)
        self.started_step = resumed.state.step
        self._first_step = self.started_step + 1
        self._begin(resumed)

    def run(self) -> bool:
        """Train; return whether the run is finished, False if it was asked to stop."""
        stopped = self._components.consensus.reached()
        while True:
            try:
                stopped = self._pause(stopped=stopped)
                if stopped or self._is_over():
                    break
                stopped = self._train_until_pause()
            except RollBack as request:
                self._roll_back(request)
            except torch.OutOfMemoryError:
                self._components.profiler.out_of_memory()
                raise
        self._leave(stopped=stopped)
        self._components.profiler.close()
        return not stopped

    @property
    def derived(self) -> Mapping[str, float]:
        """The workload's own figures of the last validation."""
        loss = self.state.last_test_loss
        return {} if loss is None else self._components.workload.derived(loss)

    @property
    def peak_memory_bytes(self) -> int | None:
        """The most that this rank has had at once; None if a GPU that failed does not report it."""
        try:
            return peak_bytes(self._components.mesh.device)
        except RuntimeError:
            return None

    def _begin(self, resumed: Resumed) -> None:
        self.state: TrainState = resumed.state
        self.step = self.state.step
        """The last one that was taken; `state` is that of the last line of the log."""
        self._checked_step = self.state.step
        """The last step at which the copies of the model were compared."""
        self._stepper.skipped = frozenset(self.state.skipped_steps)
        self.progress.begin(self.state, resumed.loss_sum.item())
        self._stepper.seek(-1)
        self._components.heartbeat.begin(self.state.step)

    def _pause(self, *, stopped: bool) -> bool:
        """Do what is due at this step; return whether to stop.

        A validation that a stop came before, or broke off, is due until it is made up.
        """
        config, step = self._components.config, self.state.step
        # What is not finite is neither measured nor kept.
        self.progress.read_losses(step, self.state)
        is_new = self.state.validated_step != step
        if not stopped and is_new and (self._is_over() or self._is_due(config.val_every)):
            stopped = not self._validate()
        is_due = self._is_due(config.checkpoint_every, besides=True)
        if step != self.started_step and (is_due or self._components.consensus.is_save_due):
            self._save()
            if not stopped and not self._is_over():
                stopped = self._components.consensus.reached()  # before a step more is to be saved
        is_due = step != self.started_step and self._components.snapshots.is_due(step)
        if is_due and not stopped and not self._is_over():
            self._snapshot()
        return stopped

    @property
    def stops_early(self) -> bool:
        """Whether as many validations as --early-stop-patience have brought no gain."""
        patience = self._components.config.early_stop_patience
        return 0 < patience <= self.state.num_validations_without_gain

    @property
    def is_at_last_step(self) -> bool:
        """Whether there is no step left to take."""
        return self.state.step >= self._total_steps

    def _is_over(self) -> bool:
        return self.stops_early or self.is_at_last_step

    def _is_due(self, every: int, *, besides: bool = False) -> bool:
        """Whether it is time, every so many steps, or, with 0 or `besides`, at an epoch's end."""
        step = self.state.step
        at_epoch_end = step % self._components.steps_per_epoch == 0
        return (every > 0 and step % every == 0) or (at_epoch_end and (besides or every == 0))

    def _train_until_pause(self) -> bool:
        """Train to the next validation, checkpoint or epoch's end; return whether to stop."""
        components = self._components
        self._stepper.seek(self.state.step)
        log_every, consensus = components.config.log_every, components.consensus
        check_every = components.config.check_replicas
        components.trained.train_model.train()
        pause_step = self._pause_step()
        for step in range(self.state.step + 1, pause_step + 1):
            components.profiler.before(step)
            if step == self._first_step:
                with self._memory.measuring():
                    self._train_step(step)
            else:
                self._train_step(step)
            self.step = components.heartbeat.step = step
            components.profiler.after(step)
            if step == self._first_step:
                self._first_step = 0  # of this attempt, also where it is rolled back to its start
                self.progress.first_step_done(step)
                self._memory.report_measured()
            if step % log_every == 0 or step == self._total_steps:
                self._log(step)
            if check_every and step % check_every == 0:
                self._check_replicas(step)
            stopped = consensus.reached()
            if stopped or consensus.is_save_due:
                self.state = replace(self.state, step=step)
                return stopped
        self.state = replace(self.state, step=pause_step)
        return False

    def _pause_step(self) -> int:
        step, config = self.state.step, self._components.config
        periods = (
            self._components.steps_per_epoch,
            config.val_every,
            config.checkpoint_every,
            self._components.snapshots.every,
        )
        nexts = [(step // period + 1) * period for period in periods if period]
        return min(*nexts, self._total_steps, step + self._stepper.table.num_free)

    def _train_step(self, step: int) -> None:
        self._stepper.take(step)

    def _log(self, step: int) -> None:
        self._components.heartbeat.collective(LOG)
        loss = self.progress.log(step, self.state)
        self.state = replace(self.state, step=step)  # a failure reports these
        if loss is not None:
            self.state = replace(self.state, last_loss=loss)

    def _validate(self) -> bool:
        """Measure on the held-out samples; keep a checkpoint if it is the best so far.

        Return False, and report nothing, if the run was asked to stop meanwhile.
        """
        components, state = self._components, self.state
        if components.evaluation is None:
            self.state = replace(state, validated_step=state.step)
            return True
        with self.progress.ledger.counting("validation_s"):
            measured = components.evaluation.measure()
        components.consensus.begin()  # training has another pace
        if measured is None:
            return False
        self.state = state.validated(measured.loss, measured.accuracy)
        components.sinks.validation(
            Validation(
                step=state.step,
                epoch=-(-state.step // components.steps_per_epoch),
                test_loss=measured.loss,
                test_accuracy=measured.accuracy,
                derived=components.workload.derived(measured.loss),
                num_samples=components.evaluation.test.num_samples,
                train_time_s=self.progress.train_time_s,
            )
        )
        if self.state.num_validations_without_gain == 0:
            self._save(is_best=True)
        return True

    def _save(self, *, is_best: bool = False) -> None:
        components = self._components
        self._check_replicas(self.state.step)  # what differs is never saved
        components.heartbeat.collective(SAVE)
        self.progress.non_finite.check_weights(self.state.step)
        is_leader = components.mesh.layout.is_stage_leader(components.mesh.ranks.rank)
        with self.progress.ledger.counting("checkpoint_s"):
            tensors = self._run_tensors(with_buffers=is_leader) | self._rank_tensors()
            components.checkpoints.save(tensors, self._state_to_save(), is_best=is_best)
        components.consensus.begin()  # time has passed

    def _snapshot(self) -> None:
        components = self._components
        self._check_replicas(self.state.step)
        components.heartbeat.collective(SAVE)
        with self.progress.ledger.counting("checkpoint_s"):
            shared = self._run_tensors(with_buffers=False)
            # A rank goes on with its own buffers.
            own = self._run_tensors(with_buffers=True) | self._rank_tensors()
            own = {name: tensor for name, tensor in own.items() if name not in shared}
            components.snapshots.take(shared, own, self._state_to_save())
        components.consensus.begin()

    def _run_tensors(self, *, with_buffers: bool) -> dict[str, Tensor]:
        trained = self._components.trained
        return gather_tensors(trained.model, trained.update.optimizer, with_buffers=with_buffers)

    def _rank_tensors(self) -> dict[str, Tensor]:
        mesh = self._components.mesh
        loss_sum = torch.tensor(self.progress.loss.value, dtype=torch.float64)
        return gather_rank(mesh.ranks.rank, loss_sum, mesh.device)

    def _check_replicas(self, step: int) -> None:
        components = self._components
        if step > self._checked_step and components.mesh.layout.dp_replicate > 1:
            components.heartbeat.collective(AGREE)
            check_replicas(components.trained.model, components.mesh, components.events, step)
            self._checked_step = step

    def _state_to_save(self) -> TrainState:
        scaler, loss = self._components.trained.update.scaler, self.progress.loss
        return replace(
            self.state,
            scaler=scaler.state_dict() if scaler.is_enabled() else None,
            interval_step=loss.from_step,
            interval_num_bad=loss.num_skipped,
        )

    def _leave(self, *, stopped: bool) -> None:
        """Save what there is, if there is time for it.

        Raises RunFailedError if a finished run has lost its last checkpoint.
        """
        components, checkpoints = self._components, self._components.checkpoints
        if stopped and not checkpoints.holds(self._state_to_save()):
            needed_s = checkpoints.last_seconds or 0.0
            (is_late,) = components.mesh.max([float(needed_s > components.stop.remaining_s)])
            if is_late:
                components.stop.give_up()
        self._save()
        with self.progress.ledger.counting("checkpoint_s"):
            is_kept = checkpoints.wait()
            if is_kept:
                components.snapshots.close()
        components.stop.settle()
        if not is_kept and not stopped:
            kept = checkpoints.latest_step
            raise RunFailedError(
                f"the last checkpoint, of step {self.state.step}, could not be written "
                f"({checkpoints.failure}); "
                + ("there is none" if kept is None else f"the last one there is: step {kept}")
            )

    def _roll_back(self, request: RollBack) -> None:
        """Go back to the last checkpoint; on the way from there, skip the bad steps."""
        skipped = self._stepper.skipped.union(request.steps)
        self._components.heartbeat.collective(LOAD)
        resumed = self._components.go_back(self.state)
        state = replace(resumed.state, skipped_steps=sorted(skipped))
        self._begin(replace(resumed, state=state))
        self._components.consensus.begin()
