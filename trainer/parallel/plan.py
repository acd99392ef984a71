"""A workload's description of its model, by which it is parallelized. Pure; it knows no ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal

from trainer.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

Style = Literal["embedding", "norm", "reads_stream", "columns", "rows", "output"]
"""What a module does with the residual stream, the activations that all layers read and add to.

embedding     a table, split by rows; writes the stream
norm          reads and writes the stream, each position by itself
reads_stream  a block whose projections need all positions of the stream
columns       a projection, split by its outputs: each rank computes some heads, or some channels
rows          a projection, split by its inputs, which are `columns`' outputs; adds to the stream
output        a projection from the stream, split by its outputs, which are put together
"""


@dataclass(frozen=True, kw_only=True)
class ParallelSizes:
    """The dimensions that are split."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    ffn_dim: int
    vocab_size: int
    sequence_length: int
    is_tied: bool = False
    """Whether the embedding is the output matrix, too."""


@dataclass(frozen=True, kw_only=True)
class ParallelPlan:
    """By names of modules, in which `*` stands for any one part of a name."""

    blocks: str = ""
    """The modules that are sharded, recomputed and compiled one by one; "": the model as a whole.
    None of them lies in another one."""
    draws: bool = True
    """Whether a block's forward draws random numbers, such as a dropout's: if it is recomputed, it
    must draw the same ones, and the states of all generators are kept for that."""
    styles: Mapping[str, Style] = field(default_factory=dict)
    """For tensor parallelism; none: it cannot be split that way."""
    attention: str = ""
    """For context parallelism: the modules whose attribute `attend(q, k, v)` is causal attention,
    in a model whose forward takes `positions`, shape (S,), of the tokens; "": it has none."""
    first: Sequence[str] = ()
    """For pipelines: what comes before the blocks. They and the blocks and `last` have all of the
    model's parameters, and its forward passes over what it has not (a name that is None)."""
    last: Sequence[str] = ()
    """What comes after the blocks; none: the model cannot be split."""


@dataclass(frozen=True, kw_only=True)
class ForwardPlan:
    """How one rank takes a microbatch: all on which the memory of its activations depends."""

    micro_batch_size: int
    """Samples."""
    precision: str = "fp32"
    recompute: Literal["none", "full", "selective"] = "none"
    gathers_half: bool = False
    """Whether weights come to a layer already in bf16 or fp16, as under fsdp."""
    is_on_gpu: bool = False
    tp: int = 1
    cp: int = 1
    gathers_keys: bool = False
    """Whether a rank of cp keeps all positions' keys and values."""
    sequence_parallel: bool = False
    num_layers: int | None = None
    """Layers kept at once, of a pipeline's stages on this rank, once for each pass through them;
    None: all of the model."""
    num_heads: int = 1
    """Passes through the last stage that wait at once: it has the output matrix and the loss."""


def fits(name: str, pattern: str) -> bool:
    """Whether a module's name is of that pattern."""
    parts, wanted = name.split("."), pattern.split(".")
    pairs = zip(parts, wanted, strict=False)
    return pattern != "" and len(parts) == len(wanted) and all(fnmatchcase(*p) for p in pairs)


def modules_named(model: nn.Module, pattern: str) -> list[nn.Module]:
    """Return the modules whose names are of that pattern."""
    return [module for name, module in model.named_modules() if fits(name, pattern)]


def check_blocks(plan: ParallelPlan, workload: str) -> None:
    """Raise UserError if the plan names no blocks, whose products could be of 8 bits."""
    if not plan.blocks:
        raise UserError(
            "--precision fp8",
            rule="have a workload whose parallel plan names its blocks",
            found=f"{workload}, which has none",
            remedy="take bf16",
        )


def num_chunks(cp: int) -> int:
    """Return into how many chunks a sequence is cut; its length is a multiple of that.

    Of 2 cp chunks rank r has the r-th from the front and the r-th from the back. Under a causal
    mask chunk n attends to n + 1 chunks: so every rank attends to 2 cp + 1 in all, where contiguous
    parts would give the last rank nearly twice the mean.
    """
    return 2 * cp


def own_chunks(cp: int, cp_rank: int) -> tuple[int, int]:
    """Return the numbers of a rank's two chunks, in the order of the sequence."""
    return cp_rank, num_chunks(cp) - 1 - cp_rank


def holders(cp: int) -> list[tuple[int, int]]:
    """Return of each chunk, in the order of the sequence, whose it is and which of its two."""
    found = {
        chunk: (rank, half) for rank in range(cp) for half, chunk in enumerate(own_chunks(cp, rank))
    }
    return [found[chunk] for chunk in range(num_chunks(cp))]


def own_ranges(length: int, cp: int, cp_rank: int) -> list[range]:
    """Return a rank's positions of a sequence of `length`, chunk by chunk."""
    size, rest = divmod(length, num_chunks(cp))
    assert not rest, f"{length} positions with cp {cp}"  # noqa: S101 -- the layout's check saw to it
    return [range(chunk * size, (chunk + 1) * size) for chunk in own_chunks(cp, cp_rank)]
