"""Losses and gradients that are not finite: found on the device, read now and then.

Every step has a row in a small table on the device. Its loss is added there; the check of the
gradient (trainer/loop/optim.py) writes there, too, and keeps the update from the weights. The table
is read at log intervals, before each checkpoint and before each validation, so that no step waits
for the device, and what is not finite is never saved.

All ranks find the same steps: a rank whose loss is not finite begins its backward with a gradient
that is not, the reduction carries that to all, and the losses are summed over all ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from trainer.checkpoint.shards import local_of
from trainer.data.batches import permutation
from trainer.errors import RunFailedError
from trainer.text import warn

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from trainer.checkpoint.train_state import TrainState
    from trainer.loop.components import Components

_MAX_NUM_STEPS = 1024
_MAX_NUM_SAMPLES = 256
_NUM_SAMPLES_NAMED = 8
_MAX_NUM_IN_A_ROW = 100
_MAX_NUM_ROLLBACKS = 3


def one_if_finite(one: Tensor, loss: Tensor) -> Tensor:
    """Return `one` to the bit, or not a number if the loss is not finite: its gradient's factor."""
    return torch.add(one, loss, alpha=0)


class StepTable:
    """A place for each step since it was last read."""

    def __init__(self, log_every: int, device: torch.device) -> None:
        self.capacity = min(log_every, _MAX_NUM_STEPS)
        self._values = torch.zeros(3, self.capacity, device=device)
        self._losses: tuple[Tensor, ...] = self._values[0].unbind()
        self._founds: tuple[Tensor, ...] = self._values[1].unbind()
        self._norms: tuple[Tensor, ...] = self._values[2].unbind()
        self._one = torch.ones((), device=device)
        self._count = 0
        self.last_norm = 0.0
        """The gradient's norm in the last step that was read, before it was clipped."""

    @property
    def found(self) -> Tensor:
        """Shape (), float32: 1 where this step's gradient is not finite."""
        return self._founds[self._count]

    @property
    def norm(self) -> Tensor:
        """Shape (), float32: the norm of this step's gradient."""
        return self._norms[self._count]

    def add_loss(self, loss: Tensor) -> Tensor:
        """Add a microbatch's loss to this step's; return what to multiply it by for its backward.

        It is 1 to the bit, or not a number if the loss is not finite, and so is then its gradient.
        """
        loss = loss.detach()
        self._losses[self._count].add_(loss)
        if self._one.dtype != loss.dtype:
            self._one = torch.ones_like(loss)
        return one_if_finite(self._one, loss)

    @property
    def num_free(self) -> int:
        """Steps that there is place for; it must be read before more are taken."""
        return self.capacity - self._count

    def next_step(self) -> None:
        """This step is done."""
        self._count += 1

    def read(self) -> tuple[list[float], set[int]]:
        """Return each step's loss since the last reading, and which had such a gradient, from 0.

        Awaits the device.
        """
        if not self._count:
            return [], set()
        losses, founds, norms = self._values[:, : self._count].tolist()
        self.last_norm = norms[-1]
        self._values.zero_()
        self._count = 0
        return losses, {i for i, found in enumerate(founds) if found}


@dataclass(frozen=True, kw_only=True)
class BadSteps:
    """Steps with a loss or gradient that is not finite, the same on all ranks."""

    steps: Sequence[int]
    """Counted from 1, rising."""
    ranks: Sequence[int]
    """Whose own loss was not finite at the first of them; none if only the gradient was not."""
    epoch: int
    """Of the first of them, counted from 1."""
    samples: Sequence[int]
    """What it was trained on, on these ranks if there are any."""
    is_loss: bool
    """False: only a gradient is not finite."""

    def __str__(self) -> str:
        samples = ", ".join(map(str, self.samples[:_NUM_SAMPLES_NAMED]))
        more = " …" if len(self.samples) > _NUM_SAMPLES_NAMED else ""
        where = f", on rank {', '.join(map(str, self.ranks))}" if self.ranks else ""
        what = "loss" if self.is_loss else "gradient"
        return (
            f"the {what} of step {self.steps[0]} is not finite (epoch {self.epoch}{where}, "
            f"samples {samples}{more})"
        )


class NonFinitePolicy:
    """Decides how a run goes on after such steps, as --on-nan has it."""

    def __init__(self, components: Components) -> None:
        self._components = components
        self._num_in_a_row = 0
        self.last_good_step = 0
        """The last step that was taken and finite."""
        self._last_bad_step = 0
        self._last_rollback: int | None = None
        self._num_rollbacks = 0
        self.num_steps = 0
        """How many there were in this attempt."""

    def decide(
        self,
        own: Sequence[float],
        reduced: Sequence[float],
        state: TrainState,
        first_step: int,
        saved_step: int | None,
    ) -> tuple[Literal["skip", "rollback"], Sequence[int]]:
        """Decide on the steps from `first_step` on; return what to do, and the steps it is about.

        `own` are this rank's losses, `reduced` their sums over all ranks, not a number where a
        gradient was not finite, `saved_step` the checkpoint there is. Raises RunFailedError to end
        the run. A point of synchronisation.
        """
        bad = self._describe(own, reduced, state, first_step)
        self.num_steps += len(bad.steps)
        is_all = len(bad.steps) == len(reduced)
        self._num_in_a_row = self._num_in_a_row + len(bad.steps) if is_all else 0
        action, why = self._decide(saved_step)
        self._last_bad_step = bad.steps[-1]
        self._report(bad, action, why)
        if action == "stop":
            raise RunFailedError(f"{bad}: {why}")
        return ("skip" if action == "skip" else "rollback"), bad.steps

    def _decide(self, saved_step: int | None) -> tuple[str, str]:
        if self._components.config.on_nan == "stop":
            return "stop", (
                "nothing of it is in the weights; look at these samples, lower --lr, or go on "
                "without them by --on-nan skip or rollback"
            )
        if self._components.config.on_nan == "rollback" and saved_step is not None:
            # A checkpoint is no newer for steps that were left out on the way to it.
            is_newer = saved_step != self._last_rollback
            is_better = is_newer and self.last_good_step > self._last_bad_step
            self._num_rollbacks = 1 if is_better else self._num_rollbacks + 1
            self._last_rollback = saved_step
            if self._num_rollbacks > _MAX_NUM_ROLLBACKS:
                return "stop", (
                    f"{_MAX_NUM_ROLLBACKS} rollbacks in a row, the last one to step {saved_step}, "
                    "have not mended it; lower --lr, or resume from an earlier checkpoint"
                )
            return "rollback", f"going back to step {saved_step}, and on without these batches"
        if not self._are_finite(self._components.trained.model.buffers()):
            return "stop", (
                "the model's running statistics are no longer finite either, which leaving a step "
                "out does not mend; start again with --on-nan rollback"
            )
        if self._num_in_a_row >= _MAX_NUM_IN_A_ROW:
            return "stop", (
                f"nor was any of the last {self._num_in_a_row} steps; lower --lr, or resume from "
                "an earlier checkpoint"
            )
        return "skip", "its update is left out"

    def _report(self, bad: BadSteps, action: str, why: str) -> None:
        if not self._components.mesh.ranks.is_main:
            return
        self._components.events.write(
            "non_finite",
            step=bad.steps[0],
            epoch=bad.epoch,
            samples=list(bad.samples),
            policy=self._components.config.on_nan,
            action=action,
            steps=list(bad.steps),
            ranks=list(bad.ranks),
        )
        if action != "stop":
            warn(f"{bad}: {why}")

    def _describe(
        self, own: Sequence[float], reduced: Sequence[float], state: TrainState, first_step: int
    ) -> BadSteps:
        bad = [i for i, loss in enumerate(reduced) if not math.isfinite(loss)]
        found = self._components.mesh.gather(not math.isfinite(own[bad[0]]))
        culprits = [rank for rank, is_bad in enumerate(found) if is_bad]
        ranks = culprits if len(culprits) < len(found) else []  # all of them: no one's fault
        step = first_step + bad[0]
        epoch, step_in_epoch = divmod(step - 1, self._components.steps_per_epoch)
        return BadSteps(
            steps=[first_step + i for i in bad],
            ranks=ranks,
            epoch=epoch + 1,
            samples=self._samples(state, epoch, step_in_epoch, ranks),
            is_loss=bool(culprits),
        )

    def _samples(
        self, state: TrainState, epoch: int, step_in_epoch: int, ranks: Sequence[int]
    ) -> list[int]:
        order = permutation(state.seed, epoch, state.num_train_samples)
        plan, layout = self._components.plan, self._components.mesh.layout
        size, whole = plan.rank_batch_size, plan.global_slice(step_in_epoch)
        shares = sorted({layout.dp_rank(rank) for rank in ranks})  # several may have one
        places = [whole.start + share * size + i for share in shares for i in range(size)]
        places = places or list(range(whole.start, whole.stop))
        chosen: list[int] = order[places[:_MAX_NUM_SAMPLES]].tolist()
        return chosen

    def check_weights(self, step: int) -> None:
        """Raise RunFailedError, on all ranks alike, if an update has carried weights too far."""
        if not self._are_finite(self._components.trained.update.parameters):
            raise RunFailedError.of(
                f"the weights after step {step}",
                rule="be finite",
                found="some that are not",
                remedy="lower --lr; nothing was saved from this step",
            )

    def _are_finite(self, tensors: Iterable[Tensor]) -> bool:
        """Whether all values of these are finite, on all ranks, which ask together."""
        floats = [local_of(one.detach()) for one in tensors if one.is_floating_point()]
        # By the extremes, of which nan is both: a sweep without a copy, thirty times as fast.
        ends = [torch.stack(local.aminmax()) for local in floats if local.numel()]
        is_bad = not all(bool(end.isfinite().all()) for end in ends)
        return self._components.mesh.max([float(is_bad)]) == [0.0]
