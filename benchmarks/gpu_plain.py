"""The plain loops beside the trainer on a GPU: the same models, compiled and autocast, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy

from trainer.workloads.llama import build_llama
from trainer.workloads.llama_presets import preset

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from benchmarks.gpu import Job
    from benchmarks.turns import Turns

    Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


def train(job: Job, turns: Turns) -> None:
    """Train for ever, a lap whenever it is this contestant's turn."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1)
    step = (_language if job.workload == "lm" else _images)(job, device)
    while True:
        total = torch.zeros((), device=device)
        for _ in range(job.steps_per_lap):
            total += step()
        turns.lap_done(total.item() / job.steps_per_lap)  # awaits the device


def _language(job: Job, device: torch.device) -> Callable[[], Tensor]:
    model = build_llama(preset(job.model), job.sequence_length, device.type)
    if job.compile:
        for layer in model.layers.values():
            layer.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr, fused=True)
    num_microbatches = job.global_batch_size // job.micro_batch_size
    shape = (job.micro_batch_size, job.sequence_length + 1)

    def loss_of(tokens: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(tokens[:, :-1])
            return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()) / num_microbatches

    def step() -> Tensor:
        total = torch.zeros((), device=device)
        for _ in range(num_microbatches):
            loss = loss_of(torch.randint(model.shape.vocab_size, shape, device=device))
            loss.backward()  # type: ignore[no-untyped-call] # torch's gap
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        return total

    return step


def _images(job: Job, device: torch.device) -> Callable[[], Tensor]:
    from torchvision import models  # noqa: PLC0415 -- slow, and only here

    model: Any = models.get_model(job.model, num_classes=job.num_classes).to(device)
    model = model.to(memory_format=torch.channels_last)
    if job.compile:
        model = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=job.lr, momentum=0.9, fused=True)
    shape = (job.global_batch_size, 3, job.image_size, job.image_size)
    images = torch.randn(shape, device=device).contiguous(memory_format=torch.channels_last)
    targets = torch.randint(job.num_classes, shape[:1], device=device)

    def step() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            loss = cross_entropy(model(images), targets)
        loss.backward()  # type: ignore[no-untyped-call] # torch's gap
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step
