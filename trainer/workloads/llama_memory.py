"""What a Llama keeps for its backward: activations, in bytes on one rank. Pure arithmetic.

After "Reducing Activation Recomputation in Large Transformer Models" (arXiv 2205.05198, section 4),
counted anew for this model: no dropout, SwiGLU, grouped keys and values, and an attention that
keeps no scores, but one sum a head and position. A number that a matrix gives has `c` bytes; norms
compute in float32. D = dim, F = ffn_dim, K = width of keys (and of values), H = heads, V =
vocabulary. A position of a layer keeps

    8 D + 8                      what both norms read, and their scales
    8 D                          what they made of it before their weights; only CPUs keep that
    2 c D                        what the matrices after them read
    c (2 D + 2 K) + 4 H          queries, keys, values, what attention gave, its sums
    4 c F                        gate, gate after silu, up, and their product

and after the last layer: a norm as above, what the output matrix reads (c D), the log-probabilities
(4 V) and the numbers of two tokens (16). Where autocast turns a norm's float32 into bf16 or fp16,
each projection makes its own copy of its input (5 c D in place of 2 c D); and it copies each matrix
once, unless fully_shard has gathered it in that type. tp shares out the last two lines, heads and
channels, and, with sequence parallel, the first two. cp shares out the positions, but for
keys and values (2 c K) if a rank gathers those of all. A pipeline keeps that for each microbatch
that is under way; what one stage passes to the next is not counted twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.parallel.plan import ForwardPlan
    from trainer.workloads.llama_presets import LlamaShape

_FULL = 4  # bytes of a number in float32
_HALF = 2
_NUM_ATTENTION_READERS = 3  # wq, wk, wv
_NUM_FFN_READERS = 2  # w1, w3


def activation_bytes(shape: LlamaShape, sequence_length: int, plan: ForwardPlan) -> int:
    """Return the most that is kept at once, for the microbatches of this rank's share."""
    is_mixed = plan.precision in {"bf16", "fp16", "fp8"}
    c = _HALF if is_mixed else _FULL
    # On a GPU autocast has norms give float32, on a CPU what their weights are.
    copies_inputs = is_mixed and (plan.is_on_gpu or not plan.gathers_half)
    dim, kv_dim = shape.dim, shape.num_kv_heads * shape.head_dim
    positions = plan.tp if plan.sequence_parallel else 1

    def read(num_readers: int) -> float:
        return c * dim * (num_readers if copies_inputs else 1)

    # Bytes a position.
    norm = _FULL * ((1 if plan.is_on_gpu else 2) * dim + 1) / positions
    kv_positions = plan.cp if plan.gathers_keys else 1
    kept = c * (2 * dim + 2 * kv_dim * kv_positions) + _FULL * shape.num_heads
    attention = kept / plan.tp
    channels = c * shape.ffn_dim / plan.tp
    readers = read(_NUM_ATTENTION_READERS) + read(_NUM_FFN_READERS)

    # Of the copies of matrices, once. A layer of 8-bit products makes its weight small each time.
    copied = c / plan.tp if is_mixed and not plan.gathers_half else 0.0
    matrices = 2 * dim * (dim + kv_dim) + 3 * dim * shape.ffn_dim
    layer_copies = 0.0 if plan.precision == "fp8" else copied * matrices

    tokens = plan.micro_batch_size * sequence_length / plan.cp
    layer = tokens * (2 * norm + readers + attention + 4 * channels) + layer_copies
    head = tokens * (norm + read(1) + _FULL * shape.vocab_size + 16)
    head += copied * shape.vocab_size * dim
    num_layers = plan.num_layers or shape.num_layers
    if plan.recompute == "none":
        return round(num_layers * layer + plan.num_heads * head)
    # All layers keep little; one at a time is whole again, and that only after its head is gone.
    stream = c if plan.gathers_half or not is_mixed else _FULL
    dear = attention + 2 * channels + 2 * c * dim  # what matrices and attention gave
    little = stream * dim / positions + (dear if plan.recompute == "selective" else 0.0)
    others = max(plan.num_heads - 1, 0) * head
    return round(num_layers * tokens * little + max(plan.num_heads * head, others + layer))
