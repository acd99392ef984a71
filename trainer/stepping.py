"""One optimizer step: data, forward, backward, update. Nothing in here waits for the device."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from trainer.beat import DATA, UPDATE
from trainer.nonfinite import StepTable
from trainer.parallel.plan import modules_named
from trainer.passes import choose_passes
from trainer.stragglers import ForwardTime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from trainer.parts import Parts


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
