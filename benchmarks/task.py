"""What every contestant trains, and the watch that times it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor, nn

LEARNING_RATE = 1e-3
LOG_EVERY_STEPS = 50
"""Every contestant reads its loss at this interval: the trainer's own default."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One model and batch size. The timed steps follow `num_warmup_steps` others."""

    model: Literal["cnn", "mlp"]
    batch_size: int
    num_steps: int
    num_warmup_steps: int = 50

    @property
    def total_steps(self) -> int:
        """All steps of a run; fewer than an epoch of 60,000 digits has."""
        return self.num_warmup_steps + self.num_steps

    def build_model(self) -> nn.Module:
        """Return the model as the tutorials write it, without dropout."""
        from benchmarks import models  # noqa: PLC0415 -- imports torch

        return models.TutorialCnn() if self.model == "cnn" else models.perceptron()


FULL_TASKS = {
    "a": Task(model="cnn", batch_size=16, num_steps=100),
    "b": Task(model="mlp", batch_size=64, num_steps=600),
}
QUICK_TASKS = {
    "a": Task(model="cnn", batch_size=2, num_steps=50),  # a test: the numbers mean nothing
    "b": Task(model="mlp", batch_size=64, num_steps=50),
}


class Stopwatch:
    """Is called at every step's end; starts after the warm-up and stops after the last step."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._step = 0
        self._started_s = 0.0
        self._stopped_s = 0.0
        self._cpu_s = 0.0
        self.last_loss = float("nan")

    def step_done(self, loss: Tensor) -> bool:
        """Read the loss if it is time to; return whether this was the last step."""
        self._step += 1
        if self._step % LOG_EVERY_STEPS == 0:
            self.last_loss = loss.item()
        if self._step == self._task.num_warmup_steps:
            self._started_s = time.perf_counter()
            self._cpu_s = -time.process_time()
        if self._step < self._task.total_steps:
            return False
        self._stopped_s = time.perf_counter()
        self._cpu_s += time.process_time()
        return True

    @property
    def steps_per_s(self) -> float:
        """Steps per second after the warm-up."""
        return self._task.num_steps / (self._stopped_s - self._started_s)

    @property
    def steps_per_cpu_s(self) -> float:
        """The same by the process's CPU time, which other work on the machine disturbs less."""
        return self._task.num_steps / self._cpu_s
