"""Whether a layout suits the model and the batch, asked before the seconds of torch's import.

Everything here raises UserError, with the numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from rundir.text import counted
from trainer.config import Config, option_name
from trainer.errors import UserError
from trainer.parallel.chunks import num_chunks
from trainer.parallel.stages import num_stages

if TYPE_CHECKING:
    from trainer.config import PipelineSchedule
    from trainer.parallel.layout import Layout
    from trainer.parallel.plan import ParallelPlan, ParallelSizes

_OF_AXIS = {
    "sequence_parallel": "tp",
    "cp_comm_type": "cp",
    "pp_schedule": "pp",
    "pp_stages_per_rank": "pp",
}
"""Options that would be ignored where their axis is 1."""


def check_layout(
    config: Config, layout: Layout, sizes: ParallelSizes | None, *, counts_targets: bool = True
) -> None:
    """Check tp and cp, and options of axes; `sizes` are None for a model that cannot be split.

    `counts_targets`: whether the workload's loss is a sum over targets (`Workload.num_valid`).
    """
    for name, axis in _OF_AXIS.items():
        if getattr(layout, axis) == 1 and getattr(config, name) != getattr(Config, name):
            raise UserError(
                option_name(name),
                rule=f"have {axis} over 1",
                found=f"{axis} 1",
                remedy=f"give --{axis}, too",
            )
    if layout.tp > 1:
        _check_tp(
            layout, sizes or _no_plan(config, "tp", layout.tp, "no plan to split its matrices")
        )
    if layout.cp > 1:
        sizes = sizes or _no_plan(config, "cp", layout.cp, "no sequences to share")
        _check_cp(layout.cp, sizes, config.workload, counts_targets=counts_targets)
    if config.cpu_offload and not layout.is_sharded:
        raise UserError(
            "--cpu-offload",
            rule="have a layout that shards the model",
            found="a whole copy on each rank",
            remedy="take --strategy fsdp on several ranks",
        )


def _no_plan(config: Config, axis: str, size: int, lack: str) -> NoReturn:
    raise UserError(
        f"--{axis}",
        rule=f"be 1: workload {config.workload} has {lack}",
        found=size,
        remedy="take ddp, fsdp or hsdp",
    )


def _check_tp(layout: Layout, sizes: ParallelSizes) -> None:
    split = {
        "heads": sizes.num_heads,
        "heads of keys and values": sizes.num_kv_heads,
        "feed-forward channels": sizes.ffn_dim,
        "tokens of the vocabulary": sizes.vocab_size,
    }
    if layout.sequence_parallel:
        shared = " that a rank of cp has" if layout.cp > 1 else ""
        split[f"positions of a sequence{shared}"] = sizes.sequence_length // layout.cp
    for name, size in split.items():
        if size % layout.tp:
            raise UserError(
                "--tp",
                rule=f"divide the model's {name}",
                found=f"{size} with tp {layout.tp}",
                remedy="take another --tp or --model",
            )


def _check_cp(cp: int, sizes: ParallelSizes, workload: str, *, counts_targets: bool) -> None:
    unit = num_chunks(cp)
    if sizes.sequence_length % unit:
        raise UserError(
            "--cp",
            rule="be such that 2 x cp divides the positions of a sequence",
            found=f"{sizes.sequence_length} with cp {cp}",
            remedy=f"take a --sequence-length that is a multiple of {unit}, or another --cp",
        )
    if not counts_targets:
        raise UserError(
            "--cp",
            rule="have a workload whose loss is a sum over targets, counted by num_valid",
            found=f"{workload} with cp {cp}",
            remedy="define num_valid, or take ddp, fsdp or hsdp",
        )


def check_blocks(plan: ParallelPlan, workload: str) -> None:
    """Check that the plan names blocks, whose products could be of 8 bits."""
    if not plan.blocks:
        raise UserError(
            "--precision fp8",
            rule="have a workload whose parallel plan names its blocks",
            found=f"{workload}, which has none",
            remedy="take bf16",
        )


def check_pipeline(
    config: Config, layout: Layout, sizes: ParallelSizes | None, num_microbatches: int
) -> None:
    """Check whether model and batch suit the pipeline, if there is one."""
    if layout.pp == 1:
        return
    sizes = sizes or _no_plan(config, "pp", layout.pp, "no plan to cut its layers")
    if sizes.is_tied:
        raise UserError(
            "--pp",
            rule="be 1: the model's embedding is its output matrix, at both ends of a pipeline",
            found=layout.pp,
            remedy="take fsdp or tp, or a --model that is not tied",
        )
    _check_stages(config, layout, sizes)
    _check_microbatches(config.pp_schedule, num_microbatches, layout.pp)


def _check_stages(config: Config, layout: Layout, sizes: ParallelSizes) -> None:
    count = num_stages(config, layout)
    if (count > layout.pp) != (config.pp_schedule == "interleaved"):
        raise UserError(
            "--pp-stages-per-rank",
            rule="be several with --pp-schedule interleaved, 1 with the others",
            found=f"{count // layout.pp} with {config.pp_schedule}",
            remedy="change one of the two",
        )
    if sizes.num_layers < count:
        per_rank = count // layout.pp
        raise UserError(
            "--pp",
            rule="have a layer for each stage",
            found=f"{counted(sizes.num_layers, 'layer')} with {count} stages "
            f"(pp {layout.pp} x {per_rank})",
            remedy="lower --pp or --pp-stages-per-rank",
        )


def _check_microbatches(schedule: PipelineSchedule, count: int, pp: int) -> None:
    """What torch's schedules require."""
    if schedule == "1f1b" and count < pp:
        raise UserError(
            "--pp-schedule 1f1b",
            rule="have at least as many microbatches as stages",
            found=f"{count} with {pp} stages",
            remedy="lower --micro-batch-size, or take --pp-schedule gpipe",
        )
    rounds = max(1, count // pp)
    if schedule == "interleaved" and count % rounds:
        raise UserError(
            "--pp-schedule interleaved",
            rule="have microbatches in rounds of equally many, a round for each pp of them",
            found=f"{count} in {rounds} rounds with pp {pp}",
            remedy="take another --micro-batch-size",
        )
