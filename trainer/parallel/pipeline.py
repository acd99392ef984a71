"""Pipeline parallelism: each rank has some layers, and passes on what they make of a microbatch.

A stage is the model without the modules of the other stages (pipeline_split.py), parallelized over
the other axes like a whole one; torch.distributed.pipelining runs the microbatches of one optimizer
step through all stages, in the order of a schedule, and reduces gradients once, behind the last
one. The loss is computed on the ranks of the last stage; nothing here divides it or a gradient: the
trainer's own loss scaling has done so, for all ranks and microbatches together. Naive model
parallelism, a layer after the other, is gpipe with one microbatch.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from torch.distributed import ProcessGroup

    from trainer.config import PipelineSchedule

    Loss = Callable[[Tensor, Tensor], Tensor]

_SINGLE = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class Pipeline(nn.Module):
    """This rank's stages of a pipeline; all ranks of it call it together."""

    def __init__(  # noqa: PLR0913, PLR0917 -- all that it is, once
        self,
        stages: Sequence[nn.Module],
        numbers: Sequence[int],
        num_stages: int,
        schedule: PipelineSchedule,
        group: ProcessGroup,
        device: torch.device,
    ) -> None:
        """Take the stages of the given numbers, out of `num_stages` on the ranks of `group`."""
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self.around: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
        """Returns what to compute a stage's forward in, when training."""
        self._numbers = numbers
        self._num_stages = num_stages
        self._schedule = schedule
        self._group = group
        self._device = device
        self._training: Any = None
        self._evaluating: Any = None
        self._evaluation_size = 0
        for stage in stages:
            stage.forward = partial(self._forward, stage.forward)

    @property
    def is_first(self) -> bool:
        """Whether microbatches come in here."""
        return 0 in self._numbers

    @property
    def is_last(self) -> bool:
        """Whether outputs come out here."""
        return self._num_stages - 1 in self._numbers

    def prepare(self, num_microbatches: int, loss: Loss) -> None:
        """Set what a step has; `loss(outputs, targets)` is asked on the last stage's ranks.

        Once more than there are microbatches in the first step, when torch infers the shapes of
        what travels.
        """
        self._training = self._build(num_microbatches, loss)

    def step(self, microbatches: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """Take a step's microbatches forward and backward; return their losses.

        They are of equal size. No losses on ranks without the last stage.
        """
        inputs, targets = zip(*microbatches, strict=True)
        losses: list[Tensor] = []
        self._training.step(
            *([torch.cat(inputs)] if self.is_first else []),
            target=torch.cat(targets) if self.is_last else None,
            losses=losses if self.is_last else None,
            return_outputs=False,
        )
        return [loss.detach() for loss in losses]

    def forward(self, inputs: Tensor) -> Tensor | None:
        """Return the outputs for a batch, without gradients; None but on the last stage's ranks.

        The first batch is the largest: others are filled up to its size.
        """
        if self._evaluating is None:
            self._evaluating, self._evaluation_size = self._build(1, None), len(inputs)
        arguments = [self._filled(inputs)] if self.is_first else []
        outputs = self._evaluating.step(*arguments)
        return None if outputs is None else outputs[: len(inputs)]

    def _filled(self, inputs: Tensor) -> Tensor:
        num_missing = self._evaluation_size - len(inputs)
        return torch.cat([inputs, inputs[:1].expand(num_missing, *inputs.shape[1:])])

    def _build(self, num_microbatches: int, loss: Loss | None) -> Any:  # noqa: ANN401 -- a schedule of torch's
        stages: list[Any] = [
            PipelineStage(stage, number, self._num_stages, self._device, group=self._group)
            for stage, number in zip(self.stages, self._numbers, strict=True)
        ]
        shared: dict[str, Any] = {"loss_fn": loss, "scale_grads": False}
        if self._schedule == "interleaved":
            return ScheduleInterleaved1F1B(stages, num_microbatches, **shared)
        cls = ScheduleGPipe if loss is None else _SINGLE[self._schedule]
        return cls(stages[0], num_microbatches, **shared)

    def _forward(
        self,
        forward: Callable[..., Tensor],
        inputs: Tensor,
        **named: Any,  # noqa: ANN401 -- what a hook of cp adds
    ) -> Tensor:
        with self.around() if self.training else contextlib.nullcontext():
            return forward(inputs, **named)
