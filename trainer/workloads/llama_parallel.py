"""How a Llama may be split over ranks; see trainer/parallel/plan.py for the terms."""

from __future__ import annotations

from trainer.parallel.plan import ParallelPlan

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
