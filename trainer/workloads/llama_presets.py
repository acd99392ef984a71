"""The Llama models that `--model` names: shapes, what follows from those, how they may be split.

No torch: a wrong name is reported before it is imported.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.errors import UserError
from trainer.parallel.plan import ParallelPlan

_MOST_LAYERS = 10_000
"""A damaged config.json may have more, which would take hours to build."""


@dataclass(frozen=True, kw_only=True)
class LlamaShape:
    """Every number that makes a Llama. A projection's weights have no bias."""

    vocab_size: int
    dim: int
    """Width of the residual stream."""
    num_layers: int
    num_heads: int
    num_kv_heads: int
    """Heads of keys and values; each serves num_heads / num_kv_heads heads of queries."""
    ffn_dim: int
    """Width inside the feed-forward block."""
    rope_theta: float
    norm_eps: float = 1e-5
    is_tied: bool = False
    """The output matrix is the embedding."""
    max_sequence_length: int
    """What it was trained on, in tokens; the default of --sequence-length."""

    def __post_init__(self) -> None:
        """Raise UserError for a number that none can be, or if the heads do not divide."""
        numbers = {name: value for name, value in vars(self).items() if name != "is_tied"}
        for name, value in numbers.items():
            is_endless = name == "num_layers" and value > _MOST_LAYERS
            if is_endless or not 0 < value < float("inf"):
                most = f"at most {_MOST_LAYERS:,}"
                raise UserError(
                    f"a Llama's {name}",
                    rule=f"be {most if is_endless else 'a finite number above 0'}",
                    found=value,
                    remedy="correct the shape",
                )
        divides = self.dim % self.num_heads == 0 and self.num_heads % self.num_kv_heads == 0
        if not divides or self.head_dim % 2:
            raise UserError(
                "a Llama's heads",
                rule="be even parts of dim, and num_kv_heads a divisor of num_heads",
                found=f"{self.num_kv_heads}, {self.num_heads}, {self.dim}",
                remedy="correct the shape",
            )

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.dim // self.num_heads

    @property
    def num_parameters(self) -> int:
        """Trained numbers, a tied matrix counted once."""
        kv_dim = self.num_kv_heads * self.head_dim
        attention = 2 * self.dim * self.dim + 2 * self.dim * kv_dim
        layer = attention + 3 * self.dim * self.ffn_dim + 2 * self.dim
        num_matrices = 1 if self.is_tied else 2
        return num_matrices * self.vocab_size * self.dim + self.num_layers * layer + self.dim

    def flops_per_token(self, sequence_length: int) -> float:
        """Return the operations of training on a token, 6 N + 12 L D S (arXiv 2204.02311).

        6 N: each weight multiplies and adds once forward and twice backward. N leaves the embedding
        out, which only looks up, unless it is the output matrix, too. 12 L D S: the scalar products
        of attention, counted over the whole square, as others count them, though causality needs
        only half; so a kernel that skips the other half gets credit for it.
        """
        num_looked_up = 0 if self.is_tied else self.vocab_size * self.dim
        num_multiplied = self.num_parameters - num_looked_up
        return 6 * num_multiplied + 12 * self.num_layers * self.dim * sequence_length


_FIELDS = (
    "vocab_size", "dim", "num_layers", "num_heads", "num_kv_heads", "ffn_dim",
    "rope_theta", "max_sequence_length", "is_tied",
)  # fmt: skip
_ROWS: dict[str, tuple[int | bool, ...]] = {
    # Ours, of bytes: for tests, demonstrations, and a laptop.
    "toy": (256, 128, 5, 4, 2, 384, 10_000, 256, False),
    "mini": (256, 320, 8, 5, 5, 864, 10_000, 512, False),
    # github.com/karpathy/llama2.c: the models trained on TinyStories.
    "stories15m": (32_000, 288, 6, 6, 6, 768, 10_000, 256, True),
    # huggingface.co/HuggingFaceTB/SmolLM2-135M, config.json
    "smollm2-135m": (49_152, 576, 30, 9, 3, 1536, 100_000, 8192, True),
    # huggingface.co/TinyLlama/TinyLlama_v1.1, config.json
    "tinyllama-1.1b": (32_000, 2048, 22, 32, 4, 5632, 10_000, 2048, False),
    # huggingface.co/meta-llama/Llama-2-7b-hf, config.json
    "llama2-7b": (32_000, 4096, 32, 32, 32, 11_008, 10_000, 4096, False),
    # huggingface.co/meta-llama/Meta-Llama-3-8B, config.json
    "llama3-8b": (128_256, 4096, 32, 32, 8, 14_336, 500_000, 8192, False),
}
PRESETS = {
    name: LlamaShape(**dict(zip(_FIELDS, row, strict=True)))  # type: ignore[arg-type] # by name
    for name, row in _ROWS.items()
}
DEFAULT = "toy"


def preset(name: str) -> LlamaShape:
    """Return the shape of that name, "" meaning the default. Raises UserError for another."""
    try:
        return PRESETS[name or DEFAULT]
    except KeyError:
        raise UserError(
            "--model",
            rule=f"be one of {', '.join(PRESETS)} for workload lm, or a folder with a Llama",
            found=repr(name),
            remedy="change it",
        ) from None


LLAMA_PLAN = ParallelPlan(
    first=("tok_embeddings",),
    blocks="layers.*",
    draws=False,
    attention="layers.*.attention",
    last=("norm", "output"),
    styles={
        "tok_embeddings": "embedding",
        "layers.*.attention_norm": "norm",
        # Named once for its three projections, so that their gradients are summed in one message.
        "layers.*.attention": "reads_stream",
        "layers.*.attention.wq": "columns",
        "layers.*.attention.wk": "columns",
        "layers.*.attention.wv": "columns",
        "layers.*.attention.wo": "rows",
        "layers.*.ffn_norm": "norm",
        "layers.*.feed_forward": "reads_stream",
        "layers.*.feed_forward.w1": "columns",
        "layers.*.feed_forward.w3": "columns",
        "layers.*.feed_forward.w2": "rows",
        "norm": "norm",
        "output": "output",
    },
)
"""How a Llama may be split over ranks; see trainer/parallel/plan.py for the terms."""
