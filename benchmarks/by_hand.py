"""Loops that a good engineer writes with plain PyTorch, around layouts written by hand.

Nothing is a handicap: a fused optimizer, no message that is not needed, and no check, clock or
record of any kind, but for the loss now and then.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist

from benchmarks.by_hand_layouts import LAYOUTS, backward, loss_of
from trainer.workloads.llama import build_llama

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

    from trainer.workloads.llama_presets import LlamaShape


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is trained, and how: the same for both."""

    shape: LlamaShape
    sequence_length: int
    global_batch_size: int
    num_tokens: int
    """Of random text."""
    lr: float
    weight_decay: float
    log_every: int
    """Steps after which the loss is summed over the ranks, and read."""


def steps(layout: str, task: Task) -> Iterator[float]:
    """Train for ever, a step for each value, which is the loss when it was read last."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(1)
    parallel = LAYOUTS[layout](build_llama(task.shape, task.sequence_length))
    model = parallel.model
    optimizer = torch.optim.AdamW(
        _groups(model), lr=task.lr, weight_decay=task.weight_decay, fused=True
    )
    samples = _samples(task)
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(1))
    size = task.global_batch_size // parallel.dp_size
    total = torch.zeros(())
    loss = 0.0
    num_losses = parallel.num_losses or dist.get_world_size()
    for step in itertools.count(1):
        begin = step * task.global_batch_size % (len(samples) - task.global_batch_size)
        begin += parallel.dp_rank * size
        tokens = samples[order[begin : begin + size]].long()
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        if parallel.step:
            total += parallel.step(inputs, targets).detach()
        else:
            total += backward(loss_of(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()
        yield loss
        if step % task.log_every == 0:
            dist.all_reduce(total)
            loss = total.item() / num_losses / task.log_every
            total.zero_()


def _groups(model: nn.Module) -> list[dict[str, Any]]:
    """Return parameters by their mesh: a fused optimizer takes those of one at a time."""
    groups: dict[Any, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        groups.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    return [{"params": group} for group in groups.values()]


def _samples(task: Task) -> Tensor:
    """Return random tokens, shape (samples, S + 1): inputs, and the same one further."""
    generator = torch.Generator().manual_seed(0)
    row = torch.randint(task.shape.vocab_size, (task.num_tokens,), generator=generator)
    return row.unfold(0, task.sequence_length + 1, task.sequence_length).to(torch.int32)
