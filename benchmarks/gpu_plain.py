"""The plain loops beside the trainer on a GPU: the same models, compiled and autocast, too."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy

from trainer.workloads.llama import build_llama
from trainer.workloads.llama_presets import preset

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from torch import Tensor

    from benchmarks.gpu import Job
    from benchmarks.turns import Turns


def train(job: Job, turns: Turns, *, as_expert: bool) -> None:
    """Train for ever, a lap whenever it is this contestant's turn.

    `as_expert`: with weights and optimizer in bf16, and the loss compiled: what is faster, and
    what the trainer, whose weights are fp32, does not do.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(1)
    step = (_language if job.workload == "lm" else _images)(job, device, as_expert=as_expert)
    while True:
        total = torch.zeros((), device=device)
        for _ in range(job.steps_per_lap):
            total += step()
        turns.lap_done(total.item() / job.steps_per_lap)  # awaits the device


def _language(job: Job, device: torch.device, *, as_expert: bool) -> Callable[[], Tensor]:
    model = build_llama(preset(job.model), job.sequence_length, device.type)
    if as_expert:
        model = model.bfloat16()
    if job.compile:
        for layer in model.layers.values():
            layer.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr, fused=True)
    num_microbatches = job.global_batch_size // job.micro_batch_size
    shape = (job.micro_batch_size, job.sequence_length + 1)
    loss_of = _loss(job, as_expert=as_expert)

    def forward(tokens: Tensor) -> Tensor:
        with _precision(device, as_expert=as_expert):
            logits = model(tokens[:, :-1])
            return loss_of(logits.flatten(0, 1), tokens[:, 1:].flatten()) / num_microbatches

    def step() -> Tensor:
        total = torch.zeros((), device=device)
        for _ in range(num_microbatches):
            loss = forward(torch.randint(model.shape.vocab_size, shape, device=device))
            loss.backward()  # type: ignore[no-untyped-call] # torch's gap
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        return total

    return step


def _images(job: Job, device: torch.device, *, as_expert: bool) -> Callable[[], Tensor]:
    from torchvision import models  # noqa: PLC0415 -- slow, and only here

    model: Any = models.get_model(job.model, num_classes=job.num_classes).to(device)
    model = model.to(memory_format=torch.channels_last)
    dtype = torch.bfloat16 if as_expert else torch.float32
    model = model.to(dtype)
    if job.compile:
        model = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=job.lr, momentum=0.9, fused=True)
    shape = (job.global_batch_size, 3, job.image_size, job.image_size)
    images = torch.randn(shape, device=device, dtype=dtype)
    images = images.contiguous(memory_format=torch.channels_last)
    targets = torch.randint(job.num_classes, shape[:1], device=device)
    loss_of = _loss(job, as_expert=as_expert)

    def step() -> Tensor:
        with _precision(device, as_expert=as_expert):
            loss = loss_of(model(images), targets)
        loss.backward()  # type: ignore[no-untyped-call] # torch's gap
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def _precision(device: torch.device, *, as_expert: bool) -> AbstractContextManager[object]:
    return nullcontext() if as_expert else torch.autocast(device.type, torch.bfloat16)


def _loss(job: Job, *, as_expert: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss; compiled, no copy of the logits in fp32 is ever in memory."""
    if not as_expert:
        return cross_entropy

    def in_fp32(logits: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(logits.float(), targets)

    return torch.compile(in_fp32) if job.compile else in_fp32
