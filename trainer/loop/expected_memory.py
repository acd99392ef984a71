"""What a rank's memory will have to hold, by arithmetic, and whether its GPU has that free.

A gradient is as large as its parameter, or this rank's shard of it; adam keeps two numbers for each
of a parameter's, sgd one; activations are computed by the workload.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from trainer.checkpoint.shards import num_local_bytes
from trainer.errors import UserError
from trainer.parallel.plan import ForwardPlan, modules_named
from trainer.parallel.stages import layers_kept, passes_kept

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.data.batch_plan import BatchPlan
    from trainer.distributed.mesh import Mesh
    from trainer.loop.model import TrainedModel
    from trainer.workloads.base import Workload

_NUM_MOMENTS = {"adamw": 2, "adam": 2, "sgd": 1}


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """Bytes on a rank; None: not known."""

    parameters_bytes: int
    """Buffers, such as tables, are none."""
    gradients_bytes: int
    """At the update: reduced, and with fully_shard this rank's part."""
    optimizer_bytes: int
    activations_bytes: int | None
    """The most that one rank's forwards keep at once."""

    @property
    def known_bytes(self) -> int:
        """All that is known."""
        kept = self.activations_bytes or 0
        return self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes + kept

    def text(self) -> str:
        """Describe it in a line."""
        sizes = {name: "not known" if v is None else size_text(v) for name, v in vars(self).items()}
        return ", ".join(f"{name.removesuffix('_bytes')} {size}" for name, size in sizes.items())

    def largest(self, mesh: Mesh) -> MemoryUse:
        """Return the largest of all ranks, each number by itself. All of them call this."""
        own = [float(-1 if value is None else value) for value in vars(self).values()]
        most = zip(vars(self), mesh.max(own), strict=True)
        found: dict[str, Any] = {name: None if v < 0 else int(v) for name, v in most}
        return MemoryUse(**found)


@dataclass(frozen=True, kw_only=True)
class Demand:
    """All on which the memory of this rank's steps depends."""

    config: Config
    mesh: Mesh
    plan: BatchPlan
    workload: Workload
    trained: TrainedModel

    def use(self) -> MemoryUse:
        """Return what this rank will need."""
        trained = {id(parameter) for parameter in self.trained.update.parameters}
        own = {id(p): num_local_bytes(p) for p in self.trained.model.parameters()}
        gradients = sum(num_bytes for key, num_bytes in own.items() if key in trained)
        return MemoryUse(
            parameters_bytes=sum(own.values()),
            gradients_bytes=gradients,
            optimizer_bytes=_NUM_MOMENTS[self.config.optimizer] * gradients,
            activations_bytes=self.workload.activation_bytes(self._forward_plan()),
        )

    def least_bytes(self) -> int:
        """Return what this rank's GPU must hold at once, at the least: no run is refused that fits.

        With one microbatch, gradients come as activations go. A compiled layer keeps its input, and
        how much of the rest is the compiler's choice.
        """
        use, plan = self.use(), self._forward_plan()
        if self.config.compile:
            plan = replace(plan, recompute="full")
        activations = self.workload.activation_bytes(plan) or 0
        if self.config.cpu_offload:
            return activations
        gradients = use.gradients_bytes
        is_one = self.plan.num_microbatches == 1
        passing = max(gradients, activations) if is_one else gradients + activations
        return use.parameters_bytes + use.optimizer_bytes + passing

    def largest_fitting(self, free_bytes: int) -> int:
        """Return the largest microbatch, of those that divide a rank's share, or 0."""
        share = self.plan.rank_batch_size
        for size in range(self.plan.micro_batch_size, 0, -1):
            plan = replace(self.plan, micro_batch_size=size, num_microbatches=share // size)
            if share % size == 0 and replace(self, plan=plan).least_bytes() <= free_bytes:
                return size
        return 0

    def _layers_kept(self, pp_rank: int) -> int | None:
        layout = self.mesh.layout
        if layout.pp == 1:
            return None
        blocks = self.workload.parallel_plan().blocks
        own = [len(modules_named(stage, blocks)) for stage in self.trained.stages]
        return layers_kept(self.config, layout, pp_rank, self.plan.num_microbatches, own)

    def _forward_plan(self) -> ForwardPlan:
        layout, config = self.mesh.layout, self.config
        pp_rank = layout.coordinates(self.mesh.ranks.rank)["pp"]
        num_passes = passes_kept(config, layout, pp_rank, self.plan.num_microbatches)
        # But for gpipe a head's backward follows its forward.
        num_heads = num_passes if config.pp_schedule == "gpipe" or layout.pp == 1 else 1
        return ForwardPlan(
            micro_batch_size=self.plan.micro_batch_size,
            precision=config.precision,
            recompute=config.activation_checkpointing,
            gathers_half=layout.is_sharded and (layout.dp_size > 1 or config.cpu_offload),
            is_on_gpu=self.mesh.device.type == "cuda",
            tp=layout.tp,
            cp=layout.cp,
            gathers_keys=config.cp_comm_type == "all_gather",
            sequence_parallel=layout.sequence_parallel,
            num_layers=self._layers_kept(pp_rank),
            num_heads=num_heads if pp_rank == layout.pp - 1 else 0,
        )


def check_free_memory(demand: Demand) -> None:
    """Raise UserError, on all ranks alike, if the GPU of one has less memory free than it needs.

    What other processes hold there is not free; what this one has taken already is. All ranks call
    this. On a CPU nothing is compared: there the system swaps, and kills a process that takes too
    much.
    """
    mesh = demand.mesh
    if mesh.device.type != "cuda":
        return
    free, total = torch.cuda.mem_get_info(mesh.device)
    free += torch.cuda.memory_reserved(mesh.device)
    least = demand.least_bytes()
    fitting = demand.largest_fitting(free) if least > free else demand.plan.micro_batch_size
    worst, minus_fitting = mesh.max([least - free, -fitting])
    if worst <= 0:
        return
    rank = int(mesh.max([mesh.ranks.rank if least - free == worst else -1])[0])
    own = [least, free, total] if mesh.ranks.rank == rank else [0, 0, 0]
    least_text, free_text, total_text = map(size_text, mesh.sum(own))
    raise UserError(
        f"GPU memory of rank {rank} on {mesh.nodes[rank]}",
        rule=f"have about {least_text} free, which a step needs",
        found=f"{free_text} of {total_text}",
        remedy=_remedy(demand, int(-minus_fitting)),
    )


def _remedy(demand: Demand, fitting: int) -> str:
    config, layout = demand.config, demand.mesh.layout
    if fitting:
        now = demand.plan.micro_batch_size
        return f"lower --micro-batch-size from {now} to {fitting}"
    options = {
        "--activation-checkpointing full": config.activation_checkpointing == "none",
        "--precision bf16": config.precision in {"fp32", "tf32"},
        "--strategy fsdp": not layout.is_sharded,
        "more GPUs": True,
    }
    return "beside a smaller --micro-batch-size take " + " or ".join(
        option for option, helps in options.items() if helps
    )


def size_text(num_bytes: float) -> str:
    """Write a size, such as 1.5 GiB."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1000:  # noqa: PLR2004 -- three digits at most
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.3g} GiB" if num_bytes < 1000 else f"{num_bytes:,.0f} GiB"  # noqa: PLR2004 -- the same
