"""A Llama: tokens in, a logit for each possible next token out.

tokens -> embedding -> layers -> norm -> output matrix -> logits. A layer adds to the residual
stream twice: once what attention gathers from earlier positions, once what the feed-forward block
makes of each position by itself.

Shapes: B samples, S positions, D = dim, H heads of queries, K heads of keys and values, E = head
dim, V = vocabulary. Modules have torchtitan's names, and weights the layout of Hugging Face's
Llama: a rotary pair is (i, i + E/2), so that their weights fit as they are.

Nothing here knows of ranks. Numbers of heads are read off the projections' outputs, so that a
layer whose projections are split by heads is still right; a model is made on the meta device, gets
memory by `to_empty` and values by `init_weights`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainer.workloads.llama_presets import LlamaShape


def rotation_angles(
    length: int, head_dim: int, theta: float, device: torch.device | None = None
) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of shape (length, head_dim / 2) of the angles by which pairs turn.

    Pair i at position p turns by p * theta^(-2i / head_dim) (arXiv 2104.09864): the first pair one
    radian a position, the last one about 1/theta. In float32, whatever the model computes in.
    """
    pairs = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device)
    positions = torch.arange(length, dtype=torch.float32, device=device)
    angles = positions[:, None] * theta ** (-pairs / head_dim)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair of `x`, shape (B, S, heads, E), by its position's angle.

    The scalar product of a turned query and a turned key then depends on how far apart the two
    are, and not on where.
    """
    cos, sin = cos[:, None, :], sin[:, None, :]  # the same for all heads
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.type_as(x)


def attend_causally(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Let each position gather from itself and those before it; `k` and `v` may have fewer heads.

    Shapes are (B, heads, S, E); the result has that of `q`.
    """
    return scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1]
    )


class Attention(nn.Module):
    """Each position gathers from itself and those before it; a head of keys serves many queries."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        kv_dim = shape.num_kv_heads * shape.head_dim
        self.head_dim = shape.head_dim
        self.wq = nn.Linear(shape.dim, shape.dim, bias=False)
        self.wk = nn.Linear(shape.dim, kv_dim, bias=False)
        self.wv = nn.Linear(shape.dim, kv_dim, bias=False)
        self.wo = nn.Linear(shape.dim, shape.dim, bias=False)
        self.attend: Callable[[Tensor, Tensor, Tensor], Tensor] = attend_causally
        """May be replaced by one that knows where the rest of the sequence is."""

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map (B, S, D) to (B, S, D)."""
        batch, length, _ = x.shape
        q, k, v = (
            project(x).view(batch, length, -1, self.head_dim)  # (B, S, H or K, E)
            for project in (self.wq, self.wk, self.wv)
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        gathered = self.attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        mixed: Tensor = self.wo(gathered.transpose(1, 2).reshape(batch, length, -1))
        return mixed


class FeedForward(nn.Module):
    """SwiGLU (arXiv 2002.05202): one projection, let through by another."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.w1 = nn.Linear(shape.dim, shape.ffn_dim, bias=False)
        self.w2 = nn.Linear(shape.ffn_dim, shape.dim, bias=False)
        self.w3 = nn.Linear(shape.dim, shape.ffn_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, S, D) to (B, S, D)."""
        out: Tensor = self.w2(silu(self.w1(x)) * self.w3(x))
        return out


class Layer(nn.Module):
    """Attention, then feed-forward; each reads the normalised stream and adds to it."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.dim, eps=shape.norm_eps)
        self.attention = Attention(shape)
        self.ffn_norm = nn.RMSNorm(shape.dim, eps=shape.norm_eps)
        self.feed_forward = FeedForward(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map the stream, (B, S, D), to the next one."""
        x = x + self.attention(self.attention_norm(x), cos, sin)
        out: Tensor = x + self.feed_forward(self.ffn_norm(x))
        return out


class Llama(nn.Module):
    """The whole model, for sequences up to `sequence_length`; `init_weights` gives it values."""

    rope_cos: Tensor
    rope_sin: Tensor

    def __init__(self, shape: LlamaShape, sequence_length: int | None = None) -> None:
        super().__init__()
        self.shape = shape
        self.sequence_length = sequence_length or shape.max_sequence_length
        # With a weight given, as drawing one on the meta device imports torch's compiler: seconds.
        table = torch.empty(shape.vocab_size, shape.dim)
        self.tok_embeddings = nn.Embedding(shape.vocab_size, shape.dim, _weight=table)
        # By name, so that a layer keeps its own in a model that has only some of them.
        self.layers = nn.ModuleDict({str(i): Layer(shape) for i in range(shape.num_layers)})
        self.norm = nn.RMSNorm(shape.dim, eps=shape.norm_eps)
        self.output = nn.Linear(shape.dim, shape.vocab_size, bias=False)
        if shape.is_tied:
            self.output.weight = self.tok_embeddings.weight
        for name in ("rope_cos", "rope_sin"):  # no part of the state: they follow from the shape
            empty = torch.empty(self.sequence_length, shape.head_dim // 2)
            self.register_buffer(name, empty, persistent=False)

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Map tokens of shape (B, S), int64, to logits of shape (B, S, V).

        `positions`, shape (S,), int64, are theirs in the sequence; None: 0, 1, 2 and so on.
        A stage of a pipeline, without embedding or without output matrix, takes or returns the
        stream instead, of sequences of `sequence_length`: (B, S, D), or a part of the positions.
        """
        is_first = self.tok_embeddings is not None
        length = tokens.shape[1] if is_first else self.sequence_length
        rows = slice(length) if positions is None else positions
        cos, sin = self.rope_cos[rows], self.rope_sin[rows]
        x = self.tok_embeddings(tokens) if is_first else tokens
        for layer in self.layers.values():
            x = layer(x, cos, sin)
        if self.output is None:
            return x
        logits: Tensor = self.output(self.norm(x))
        return logits

    @torch.no_grad()
    def init_weights(self, normal: Callable[[Tensor, float], object] | None = None) -> None:
        """Give every parameter and buffer its first value, drawn from torch's global generator.

        `normal(parameter, std)` draws, where a rank has only a part of each parameter.

        Normal with deviation sqrt(2 / (5 D)), as TinyLlama has it (0.014 for its width, 0.056 for
        the toy's); what adds to the stream is smaller by the root of the number of additions, so
        that the stream's size does not grow with depth, as GPT-2 has it.
        """
        shape = self.shape
        if shape.is_tied:  # again, as `to_empty` gives each its own memory
            self.output.weight = self.tok_embeddings.weight
        cos, sin = rotation_angles(
            self.sequence_length, shape.head_dim, shape.rope_theta, self.rope_cos.device
        )
        self.rope_cos.copy_(cos)
        self.rope_sin.copy_(sin)
        std = math.sqrt(2 / (5 * shape.dim))
        adding_std = std / math.sqrt(2 * shape.num_layers)
        draw = normal or (lambda parameter, std: nn.init.normal_(parameter, std=std))
        for name, parameter in self.named_parameters():
            if parameter.dim() == 1:
                nn.init.ones_(parameter)  # a norm
            else:
                is_adding = name.endswith(("attention.wo.weight", "feed_forward.w2.weight"))
                draw(parameter, adding_std if is_adding else std)


def empty_llama(shape: LlamaShape, sequence_length: int | None = None) -> Llama:
    """Return a model without memory."""
    with torch.device("meta"):
        return Llama(shape, sequence_length)


def build_llama(
    shape: LlamaShape, sequence_length: int | None = None, device: str = "cpu"
) -> Llama:
    """Return a new model; its weights are drawn once, where they are to be."""
    model = empty_llama(shape, sequence_length)
    model.to_empty(device=device)
    model.init_weights()
    return model
