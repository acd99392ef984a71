"""The sections on layouts and on a GPU, as pure functions; see report.py."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.gpu import OnGpu
    from benchmarks.layouts import Layouts, Row

    Table = tuple[Sequence[str], Sequence[Sequence[str]]]

_NOTES = """
A Llama of {millions:.1f} M parameters, {tokens:,} tokens a step, fp32, AdamW, on ranks of this
machine that talk over gloo, one thread each.
By hand: DistributedDataParallel, `fully_shard`, `parallelize_module` and torch's pipelining around
the same model (`benchmarks/by_hand_layouts.py`), in a bare loop; it checks, clocks and records
nothing, but for the loss every {loss_every} steps.
Memory that a step frees stays the process's in both, as the trainer has it
(`trainer/distributed/host_memory.py`).
Both are in the same processes and take a step in turns, {num_steps} of each in a round; start-up is
in none.
Takes more: the median of the ratios of {num_rounds} round(s); in brackets their middle half. The
last row, by hand beside itself, shows what of it is noise.
The trainer asks by the clock whether to stop. The other's steps pass on it, too: so it asks here
twice as often as alone.
A ring (`--cp-comm-type p2p`) keeps less in memory, and sends gradients around, too: of sequences
as short as these, which fit anywhere, only the latter is seen.
By CPU time: the same of the CPU time of all ranks, which is what remains where other programs take
the CPU away; waiting for each other is not in it.
"""

NO_GPU = """\
Not measured: no GPU was at hand.
"""

_GPU_NOTES = """
On {device}, one process.
Medians of {num_rounds} round(s), the trainer and both loops in turns; ratios are taken within a
round.
The plain loop (`benchmarks/gpu_plain.py`) has the same model, autocast, `torch.compile` and fused
optimizer; the expert's has weights in bf16 besides, and a compiled loss; compiling is in no number.
"""


def table(layouts: Layouts) -> Table:
    """Return the head and a row a layout."""
    costs = ["takes more", "by CPU time", "target"]
    head = ["", "ranks", "by hand: steps/s", "the trainer: steps/s", *costs]
    return head, [_row(row) for row in layouts.rows]


def _row(row: Row) -> list[str]:
    low, middle, high = row.costs_pct
    return [
        row.name,
        str(row.num_ranks),
        f"{row.num_steps / median(row.by_hand_s):.2f}",
        f"{row.num_steps / median(row.ours_s):.2f}",
        f"{middle:+.1f} % ({low:+.1f} to {high:+.1f})",
        f"{row.cpu_cost_pct:+.1f} %",
        "at most 3 %" if row.has_target else "",
    ]


def notes(layouts: Layouts) -> str:
    """Describe what was measured."""
    first = layouts.rows[0]
    return _NOTES.format(
        millions=layouts.num_parameters / 1e6,
        tokens=layouts.tokens_per_step,
        loss_every=layouts.log_every,
        num_steps=first.num_steps,
        num_rounds=len(first.ours_s),
    )


def gpu_table(on_gpu: OnGpu) -> Table:
    """Return the head and a row a job."""
    rows = [
        [
            row.label,
            f"{median(row.plain_per_s):,.0f} {row.unit}",
            f"{median(row.expert_per_s):,.0f} {row.unit}",
            f"{median(row.ours_per_s):,.0f} {row.unit}",
            f"{row.ratio:.2f}",
            f"{row.expert_ratio:.2f}",
            f"at least {row.target_per_s:,} {row.unit} on an H200",
        ]
        for row in on_gpu.rows
    ]
    loops = ["plain loop", "expert's loop", "the trainer"]
    return ["", *loops, "to plain", "to expert", "target"], rows


def gpu_notes(on_gpu: OnGpu) -> str:
    """Describe on what."""
    return _GPU_NOTES.format(device=on_gpu.device, num_rounds=len(on_gpu.rows[0].ours_per_s))
