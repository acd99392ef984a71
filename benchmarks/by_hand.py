"""Layouts written by hand: the loops that a good engineer writes with plain PyTorch.

The model is the trainer's (trainer/workloads/llama.py knows of no ranks); all that spreads and
trains it is here, and nothing of it is a handicap: blocks sharded one by one, a fused optimizer, no
message that is not needed, and no check, clock or record of any kind.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed._functional_collectives import all_gather_tensor_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

from trainer.workloads.llama import Attention, build_llama

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from trainer.workloads.llama import Llama
    from trainer.workloads.llama_presets import LlamaShape

    Step = Callable[[Tensor, Tensor], Tensor]

NUM_MICROBATCHES = 4
"""Of a step in a pipeline."""


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


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A model as it is trained, and which share of a batch is this rank's."""

    model: nn.Module
    dp_rank: int
    dp_size: int
    step: Step | None = None
    """Takes inputs and targets, both (B, S), forward and backward, and returns the loss; None:
    through the model as it is."""
    num_losses: int | None = None
    """How many ranks have a loss; None: all."""


def ddp(model: Llama) -> Spread:
    """A whole copy on every rank; its tables never change, so nobody sends them."""
    parallel = DistributedDataParallel(model, broadcast_buffers=False, gradient_as_bucket_view=True)
    return Spread(model=parallel, dp_rank=dist.get_rank(), dp_size=dist.get_world_size())


def fsdp(model: Llama) -> Spread:
    """Shards over all ranks."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    _shard(model, mesh)
    return Spread(model=model, dp_rank=dist.get_rank(), dp_size=dist.get_world_size())


def hsdp(model: Llama) -> Spread:
    """Shards over two ranks, in as many copies as there are pairs."""
    copies = dist.get_world_size() // 2
    _shard(model, init_device_mesh("cpu", (copies, 2), mesh_dim_names=("replicate", "shard")))
    return Spread(model=model, dp_rank=dist.get_rank(), dp_size=dist.get_world_size())


def tp(model: Llama) -> Spread:
    """Matrices split over all ranks."""
    _split(model, init_device_mesh("cpu", (dist.get_world_size(),)))
    return Spread(model=model, dp_rank=0, dp_size=1)


def fsdp_tp(model: Llama) -> Spread:
    """Matrices split over two ranks, and what each has sharded over the pairs."""
    pairs = dist.get_world_size() // 2
    mesh = init_device_mesh("cpu", (pairs, 2), mesh_dim_names=("dp", "tp"))
    _split(model, mesh["tp"])
    _shard(model, mesh["dp"])
    return Spread(model=model, dp_rank=mesh["dp"].get_local_rank(), dp_size=pairs)


def pp(model: Llama) -> Spread:
    """Half of the layers on each of two ranks; what is not in a stage is not in its memory."""
    is_first = dist.get_rank() == 0
    names = list(model.layers)
    for name in names[len(names) // 2 :] if is_first else names[: len(names) // 2]:
        del model.layers[name]
    unused = ("norm", "output") if is_first else ("tok_embeddings",)
    for name in unused:
        setattr(model, name, None)
    stage = PipelineStage(model, dist.get_rank(), 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, NUM_MICROBATCHES, loss_fn=_loss)

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        if is_first:
            schedule.step(inputs, return_outputs=False)
            return torch.zeros(())
        losses: list[Tensor] = []
        schedule.step(target=targets, losses=losses, return_outputs=False)
        return torch.stack(losses).mean()

    return Spread(model=model, dp_rank=0, dp_size=1, step=step, num_losses=1)


def cp(model: Llama) -> Spread:
    """Each sequence shared by all ranks, a chunk from its front and one from its back each.

    Keys and values are gathered, as Llama 3 was trained; the model is sharded over the same ranks.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    chunks = torch.arange(model.sequence_length).chunk(2 * size)
    held = [torch.cat((chunks[r], chunks[-1 - r])) for r in range(size)]
    order = torch.cat(held).argsort()  # from the ranks' to the sequence's
    own = (chunks[rank], chunks[-1 - rank])
    masks = [chunk[:, None] >= torch.arange(int(chunk[-1]) + 1) for chunk in own]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        gathered = all_gather_tensor_autograd(torch.stack((k, v), -3).movedim(-2, 0), 0, mesh)
        keys, values = gathered[order].movedim(0, -2).unbind(-3)
        halves = [
            scaled_dot_product_attention(
                part,
                keys[..., : mask.shape[1], :],
                values[..., : mask.shape[1], :],
                attn_mask=mask,
                enable_gqa=q.shape[1] != k.shape[1],
            )
            for part, mask in zip(q.chunk(2, -2), masks, strict=True)
        ]
        return torch.cat(halves, -2)

    for module in model.modules():
        if isinstance(module, Attention):
            module.attend = attend
    _shard(model, mesh)

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        places = held[rank]
        return _backward(_loss(model(inputs[:, places], places), targets[:, places]))

    return Spread(model=model, dp_rank=0, dp_size=1, step=step)


SPREADS: Mapping[str, Callable[[Llama], Spread]] = {
    "ddp": ddp,
    "fsdp": fsdp,
    "hsdp": hsdp,
    "tp": tp,
    "fsdp x tp": fsdp_tp,
    "pp": pp,
    "cp": cp,
}


def steps(layout: str, task: Task) -> Iterator[float]:
    """Train for ever, a step for each value, which is the loss when it was read last."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(1)
    spread = SPREADS[layout](build_llama(task.shape, task.sequence_length))
    model = spread.model
    optimizer = torch.optim.AdamW(
        _groups(model), lr=task.lr, weight_decay=task.weight_decay, fused=True
    )
    samples = _samples(task)
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(1))
    size = task.global_batch_size // spread.dp_size
    total = torch.zeros(())
    loss = 0.0
    num_losses = spread.num_losses or dist.get_world_size()
    for step in itertools.count(1):
        begin = step * task.global_batch_size % (len(samples) - task.global_batch_size)
        begin += spread.dp_rank * size
        tokens = samples[order[begin : begin + size]].long()
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        if spread.step:
            total += spread.step(inputs, targets).detach()
        else:
            total += _backward(_loss(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()
        yield loss
        if step % task.log_every == 0:
            dist.all_reduce(total)
            loss = total.item() / num_losses / task.log_every
            total.zero_()


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


def _backward(loss: Tensor) -> Tensor:
    loss.backward()  # type: ignore[no-untyped-call] # torch's gap
    return loss.detach()


def _shard(model: Llama, mesh: DeviceMesh) -> None:
    for layer in model.layers.values():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def _split(model: Llama, mesh: DeviceMesh) -> None:
    """As in torch's own examples: columns, then rows, one sum of each block's outputs."""
    plan: dict[str, Any] = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate()),
        "output": ColwiseParallel(output_layouts=Replicate()),
    }
    whole, split = Replicate(), ColwiseParallel()
    for name in model.layers:
        plan |= {
            # Once for the projections that read it, so that its gradient is summed once.
            f"layers.{name}.attention": PrepareModuleInput(
                input_layouts=(whole, None, None), desired_input_layouts=(whole, None, None)
            ),
            f"layers.{name}.attention.wq": split,
            f"layers.{name}.attention.wk": split,
            f"layers.{name}.attention.wv": split,
            f"layers.{name}.attention.wo": RowwiseParallel(),
            f"layers.{name}.feed_forward": PrepareModuleInput(
                input_layouts=(whole,), desired_input_layouts=(whole,)
            ),
            f"layers.{name}.feed_forward.w1": split,
            f"layers.{name}.feed_forward.w3": split,
            f"layers.{name}.feed_forward.w2": RowwiseParallel(),
        }
    parallelize_module(model, mesh, plan)


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
