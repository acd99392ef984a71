"""Progress of the run: the log interval under way, and what is reported at its end.

The losses stay on the device until they are read: at an interval's end, before a validation and
before a checkpoint. A reading is a point of synchronisation of all ranks and the only place where a
device is awaited.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil
import torch

from trainer.loop.nonfinite import NonFinitePolicy
from trainer.telemetry.ledger import Ledger
from trainer.telemetry.metrics import Interval
from trainer.telemetry.speed import Work, peak_flops_per_s
from trainer.telemetry.stragglers import Stragglers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer.checkpoint.train_state import TrainState
    from trainer.loop.components import Components
    from trainer.loop.train_step import Stepper


class RollBack(Exception):  # noqa: N818 -- it asks for something, and is no error
    """Go back to the last checkpoint, and skip `steps` from then on."""

    def __init__(self, steps: Sequence[int]) -> None:
        super().__init__()
        self.steps = steps


@dataclass
class LossSum:
    """This rank's losses of the interval under way, but for skipped steps.

    They are added in the order of the steps, so that an interval cut in two by a resume comes to
    the same sum, to the last bit.
    """

    value: float
    num_skipped: int
    from_step: int

    def add(self, losses: Sequence[float]) -> None:
        """Add a loss for each of some steps."""
        for loss in losses:  # not sum(), which rounds otherwise
            self.value += loss


class Progress:
    """Adds losses up, reads them and reports intervals."""

    def __init__(self, components: Components, stepper: Stepper) -> None:
        self._components = components
        self._stepper = stepper
        self.ledger = Ledger()
        self.stragglers = Stragglers(components.mesh.nodes)
        self.non_finite = NonFinitePolicy(components)
        self.work = _work(components)
        self._began_s = time.perf_counter()

    @property
    def train_time_s(self) -> float:
        """Seconds since training began, in this attempt, validation and checkpoints included."""
        return time.perf_counter() - self._began_s

    def begin(self, state: TrainState, loss_sum: float) -> None:
        """Go on from `state`, in the middle of an interval perhaps."""
        self.loss = LossSum(loss_sum, state.interval_num_bad, state.interval_step)
        self._stepper.table.read()
        self._timed_from_step = state.step
        self._first_step_s = 0.0
        self._began_interval()

    def time_spent(self) -> dict[str, float]:
        """Return the ledger, the interval under way included."""
        return self.ledger.time_spent(self._stepper.wait_s - self._waited_s)

    def first_step_done(self, step: int) -> None:
        """Report the attempt's first step; the only one that is waited for."""
        if self._components.mesh.device.type == "cuda":
            torch.cuda.synchronize(self._components.mesh.device)
        self.ledger.started(self._stepper.wait_s - self._waited_s)
        self._first_step_s = time.perf_counter() - self._interval_s
        if self._components.mesh.ranks.is_main:
            self._components.events.write("first_step", step=step)

    def read_losses(self, step: int, state: TrainState, *more: float) -> list[float]:
        """Read the losses since the last reading; return their sum over ranks, and `more`'s.

        Raises RollBack, or RunFailedError, when one is not finite, as --on-nan asks.
        """
        losses, found = self._stepper.table.read()
        if not losses and not more:
            return []
        is_bad = bool(found) or not all(map(math.isfinite, losses))
        attempt = LossSum(self.loss.value, 0, 0)
        attempt.add(losses)
        total, any_bad, *sums = self._components.mesh.sum([attempt.value, float(is_bad), *more])
        first_step = step - len(losses) + 1
        skipped = self._stepper.skipped.intersection(range(first_step, step + 1))
        self.loss.num_skipped += len(skipped)
        bad: Sequence[int] = []
        if any_bad:
            bad = self._decide_on(losses, found, state, first_step)
            (total,) = self._components.mesh.sum([self.loss.value])
        else:
            self.loss.value = attempt.value
        good = set(range(first_step, step + 1)).difference(skipped, bad)
        self.non_finite.last_good_step = max(good, default=self.non_finite.last_good_step)
        return [total, *sums]

    def _decide_on(
        self, losses: Sequence[float], found: set[int], state: TrainState, first_step: int
    ) -> Sequence[int]:
        """Return the steps of a reading that are not finite, without whose losses we go on."""
        own = [math.nan if i in found else loss for i, loss in enumerate(losses)]
        reduced = self._components.mesh.sum(own)
        self._components.checkpoints.wait()  # one on its way may be the one to go back to
        action, steps = self.non_finite.decide(
            losses, reduced, state, first_step, self._components.checkpoints.back_step
        )
        if action == "rollback":
            raise RollBack(steps)
        self.loss.add([v for i, v in enumerate(losses) if math.isfinite(reduced[i])])
        self.loss.num_skipped += len(steps)
        return steps

    def log(self, step: int, state: TrainState) -> float | None:
        """Report the interval that ends with `step`; return its loss, None if it has none."""
        components, mesh, plan = self._components, self._components.mesh, self._components.plan
        num_ranks = mesh.ranks.world_size
        num_timed = step - self._timed_from_step  # in this attempt
        wait_s = self._stepper.wait_s - self._waited_s
        own = [0.0] * num_ranks
        if self._stepper.forward_time is not None:
            forward_s = self._stepper.forward_time.take_s() * plan.num_microbatches
            own[mesh.ranks.rank] = forward_s + wait_s / num_timed
        loss_sum, wait_s, *own = self.read_losses(step, state, wait_s, *own)
        wait_s /= num_ranks
        num_steps = step - self.loss.from_step - self.loss.num_skipped
        loss = loss_sum / (num_ranks * num_steps) if num_steps else None
        elapsed_s = time.perf_counter() - self._interval_s
        elapsed_s -= self.ledger.paused_s - self._paused_s
        self.ledger.data_wait_s += wait_s
        step_s = self._step_s(elapsed_s, num_timed)
        self._began_interval()
        samples_per_s = num_timed * plan.global_batch_size / elapsed_s
        spent = self.time_spent()
        del spent["compute_s"]
        components.sinks.interval(
            Interval(
                step=step,
                total_steps=components.learning_rate.total_steps,
                epoch=-(-step // components.steps_per_epoch),
                loss=math.nan if loss is None else loss,
                lr=components.learning_rate.at(step - 1),
                samples_per_s=samples_per_s,
                speed=self.work.speed(samples_per_s),
                data_wait_pct=100 * wait_s / elapsed_s,
                memory_mib=_memory_mib(mesh.device),
                train_time_s=self.train_time_s,
                grad_norm=self._grad_norm(),
                slow_ranks=self.stragglers.compare(own, step_s, num_timed),
                rank_spread_pct=self.stragglers.spread_pct(own),
                **spent,
            )
        )
        self._timed_from_step = step
        if step % components.config.log_every == 0:  # not at an end between: a run may go on
            self.loss = LossSum(0.0, 0, step)
        return loss

    def _step_s(self, elapsed_s: float, num_steps: int) -> float:
        """Return what a step of the interval took: not an attempt's first, which may compile."""
        if self._first_step_s and num_steps > 1:
            elapsed_s, num_steps = elapsed_s - self._first_step_s, num_steps - 1
        self._first_step_s = 0.0
        return elapsed_s / num_steps

    def _grad_norm(self) -> float | None:
        is_known = self._components.config.clip_grad_norm is not None
        return self._stepper.table.last_norm if is_known else None

    def _began_interval(self) -> None:
        self._interval_s = time.perf_counter()
        self._paused_s = self.ledger.paused_s
        self._waited_s = self._stepper.wait_s


def _work(components: Components) -> Work:
    device, peak = components.mesh.device, None
    if device.type == "cuda":
        peak = peak_flops_per_s(torch.cuda.get_device_name(device))
    return Work(
        tokens_per_sample=components.workload.tokens_per_sample(),
        flops_per_sample=components.workload.flops_per_sample(),
        peak_flops_per_s=None if peak is None else peak * components.mesh.ranks.world_size,
    )


def _memory_mib(device: torch.device) -> float:
    """Return the peak of allocated GPU memory, or this process's memory on a CPU, in MiB."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return float(psutil.Process().memory_info().rss / 2**20)
