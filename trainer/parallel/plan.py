"""A workload's description of its model, by which it is parallelized. Pure; it knows no ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal

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
