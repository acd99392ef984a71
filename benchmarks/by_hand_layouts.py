"""Layouts written by hand, as a good engineer does with plain PyTorch.

The model is the trainer's (trainer/workloads/llama.py knows of no ranks); all that parallelizes
it is here: blocks sharded one by one, no message that is not needed.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed._functional_collectives import all_gather_tensor_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

from trainer.workloads.llama import Attention

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch.distributed.device_mesh import DeviceMesh

    from trainer.workloads.llama import Llama

    Step = Callable[[Tensor, Tensor], Tensor]

NUM_MICROBATCHES = 4
"""Of a step in a pipeline."""


@dataclass(frozen=True, kw_only=True)
class Parallelized:
    """A model as it is trained, and which share of a batch is this rank's."""

    model: nn.Module
    dp_rank: int
    dp_size: int
    step: Step | None = None
    """Takes inputs and targets, both (B, S), forward and backward, and returns the loss; None:
    through the model as it is."""
    num_losses: int | None = None
    """How many ranks have a loss; None: all."""


def ddp(model: Llama) -> Parallelized:
    """A whole copy on every rank; its tables never change, so they are never sent."""
    parallel = DistributedDataParallel(model, broadcast_buffers=False, gradient_as_bucket_view=True)
    return Parallelized(model=parallel, dp_rank=dist.get_rank(), dp_size=dist.get_world_size())


def fsdp(model: Llama) -> Parallelized:
    """Shards over all ranks."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    _shard(model, mesh)
    return Parallelized(model=model, dp_rank=dist.get_rank(), dp_size=dist.get_world_size())


def fsdp_offload(model: Llama) -> Parallelized:
    """Shards over all ranks, which rest on the host."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    _shard(model, mesh, CPUOffloadPolicy(pin_memory=False))
    return Parallelized(model=model, dp_rank=dist.get_rank(), dp_size=dist.get_world_size())


def hsdp(model: Llama) -> Parallelized:
    """Shards over two ranks, in as many copies as there are pairs."""
    copies = dist.get_world_size() // 2
    _shard(model, init_device_mesh("cpu", (copies, 2), mesh_dim_names=("replicate", "shard")))
    return Parallelized(model=model, dp_rank=dist.get_rank(), dp_size=dist.get_world_size())


def tp(model: Llama) -> Parallelized:
    """Matrices split over all ranks."""
    _split(model, init_device_mesh("cpu", (dist.get_world_size(),)))
    return Parallelized(model=model, dp_rank=0, dp_size=1)


def tp_sp(model: Llama) -> Parallelized:
    """Matrices split over all ranks, and between them the stream by positions."""
    _split(model, init_device_mesh("cpu", (dist.get_world_size(),)), is_sequence_parallel=True)
    return Parallelized(model=model, dp_rank=0, dp_size=1)


def fsdp_tp(model: Llama) -> Parallelized:
    """Matrices split over two ranks, and what each has sharded over the pairs."""
    pairs = dist.get_world_size() // 2
    mesh = init_device_mesh("cpu", (pairs, 2), mesh_dim_names=("dp", "tp"))
    _split(model, mesh["tp"])
    _shard(model, mesh["dp"])
    return Parallelized(model=model, dp_rank=mesh["dp"].get_local_rank(), dp_size=pairs)


def ddp_tp(model: Llama) -> Parallelized:
    """Matrices split over two ranks, in as many copies as there are pairs."""
    pairs = dist.get_world_size() // 2
    mesh = init_device_mesh("cpu", (pairs, 2), mesh_dim_names=("dp", "tp"))
    _split(model, mesh["tp"])
    for layer in model.layers.values():
        replicate(layer, mesh=mesh["dp"])
    replicate(model, mesh=mesh["dp"])
    return Parallelized(model=model, dp_rank=mesh["dp"].get_local_rank(), dp_size=pairs)


def pp(model: Llama) -> Parallelized:
    """Half of the layers on each of two ranks."""
    return _pipeline([_stage(model, dist.get_rank(), 2)], Schedule1F1B, dist.get_rank())


def pp_gpipe(model: Llama) -> Parallelized:
    """The same, all forwards before all backwards."""
    return _pipeline([_stage(model, dist.get_rank(), 2)], ScheduleGPipe, dist.get_rank())


def pp_interleaved(model: Llama) -> Parallelized:
    """Two stages on each of two ranks, a quarter of the layers each."""
    rank = dist.get_rank()
    parts = [_stage(copy.deepcopy(model), number, 4) for number in (rank, rank + 2)]
    return _pipeline(parts, ScheduleInterleaved1F1B, rank)


def pp_fsdp(model: Llama) -> Parallelized:
    """Half of the layers on each of two pairs of ranks, sharded over the pair."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    part = _stage(model, mesh["pp"].get_local_rank(), 2)
    _shard(part, mesh["dp"])
    return _pipeline([part], Schedule1F1B, mesh["pp"].get_local_rank(), mesh["pp"], dp=mesh["dp"])


def pp_tp(model: Llama) -> Parallelized:
    """Half of the layers on each of two pairs of ranks, matrices split over the pair."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    part = _stage(model, mesh["pp"].get_local_rank(), 2)
    _split(part, mesh["tp"])
    return _pipeline([part], Schedule1F1B, mesh["pp"].get_local_rank(), mesh["pp"])


def _stage(model: Llama, number: int, num_stages: int) -> Llama:
    """Leave a stage its share of the layers: what is not in it is not in its memory."""
    names = list(model.layers)
    size = len(names) // num_stages
    kept = names[number * size : (number + 1) * size]
    for name in names:
        if name not in kept:
            del model.layers[name]
    unused: dict[str, bool] = {
        "tok_embeddings": number > 0,
        "norm": number < num_stages - 1,
        "output": number < num_stages - 1,
    }
    for name, is_unused in unused.items():
        if is_unused:
            setattr(model, name, None)
    return model


def _pipeline(
    parts: list[Llama],
    kind: Any,  # noqa: ANN401 -- one of torch's schedules, which have no common constructor
    rank: int,
    mesh: DeviceMesh | None = None,
    dp: DeviceMesh | None = None,
) -> Parallelized:
    """Train the parts of this rank, one of two in the pipeline, by one of torch's schedules."""
    group = mesh.get_group() if mesh else None
    num_stages = 2 * len(parts)
    stages = [
        PipelineStage(part, rank + 2 * i, num_stages, torch.device("cpu"), group=group)
        for i, part in enumerate(parts)
    ]
    schedule = kind(stages if len(stages) > 1 else stages[0], NUM_MICROBATCHES, loss_fn=loss_of)

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        if rank == 0:
            schedule.step(inputs, return_outputs=False)
            return torch.zeros(())
        losses: list[Tensor] = []
        schedule.step(target=targets, losses=losses, return_outputs=False)
        return torch.stack(losses).mean()

    return Parallelized(
        model=parts[0] if len(parts) == 1 else nn.ModuleList(parts),
        dp_rank=dp.get_local_rank() if dp else 0,
        dp_size=dp.size() if dp else 1,
        step=step,
        num_losses=dist.get_world_size() // 2,
    )


def cp(model: Llama) -> Parallelized:
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
        return backward(loss_of(model(inputs[:, places], places), targets[:, places]))

    return Parallelized(model=model, dp_rank=0, dp_size=1, step=step)


LAYOUTS: Mapping[str, Callable[[Llama], Parallelized]] = {
    "ddp": ddp,
    "fsdp": fsdp,
    "fsdp with offload": fsdp_offload,
    "hsdp": hsdp,
    "tp": tp,
    "tp with sp": tp_sp,
    "ddp x tp": ddp_tp,
    "fsdp x tp": fsdp_tp,
    "pp": pp,
    "pp, gpipe": pp_gpipe,
    "pp, interleaved": pp_interleaved,
    "pp x fsdp": pp_fsdp,
    "pp x tp": pp_tp,
    "cp": cp,
}


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over all targets: logits (B, S, V), targets (B, S)."""
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


def backward(loss: Tensor) -> Tensor:
    """Fill the gradients; return the loss without its history."""
    loss.backward()  # type: ignore[no-untyped-call] # torch's gap
    return loss.detach()


def _shard(model: Llama, mesh: DeviceMesh, offload: OffloadPolicy | None = None) -> None:
    policy = offload or OffloadPolicy()
    for layer in model.layers.values():
        fully_shard(layer, mesh=mesh, offload_policy=policy)
    fully_shard(model, mesh=mesh, offload_policy=policy)


def _split(model: Llama, mesh: DeviceMesh, *, is_sequence_parallel: bool = False) -> None:
    """As in torch's own examples: columns, then rows, one sum of each block's outputs."""
    stream = Shard(1) if is_sequence_parallel else Replicate()
    whole, split = Replicate(), ColwiseParallel()
    rows = RowwiseParallel(output_layouts=stream)
    plan: dict[str, Any] = {}
    if model.tok_embeddings is not None:
        plan["tok_embeddings"] = RowwiseParallel(input_layouts=whole, output_layouts=stream)
    if model.output is not None:
        plan["output"] = ColwiseParallel(input_layouts=stream, output_layouts=whole)
        plan |= {"norm": SequenceParallel()} if is_sequence_parallel else {}
    for name in model.layers:
        plan |= {
            # Once for the projections that read it, so that its gradient is summed once.
            f"layers.{name}.attention": PrepareModuleInput(
                input_layouts=(stream, None, None), desired_input_layouts=(whole, None, None)
            ),
            f"layers.{name}.attention.wq": split,
            f"layers.{name}.attention.wk": split,
            f"layers.{name}.attention.wv": split,
            f"layers.{name}.attention.wo": rows,
            f"layers.{name}.feed_forward": PrepareModuleInput(
                input_layouts=(stream,), desired_input_layouts=(whole,)
            ),
            f"layers.{name}.feed_forward.w1": split,
            f"layers.{name}.feed_forward.w3": split,
            f"layers.{name}.feed_forward.w2": rows,
        }
        if is_sequence_parallel:
            plan[f"layers.{name}.attention_norm"] = SequenceParallel()
            plan[f"layers.{name}.ffn_norm"] = SequenceParallel()
    parallelize_module(model, mesh, plan)
