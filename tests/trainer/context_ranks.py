"""A rank of test_context.py: attention over ranks, beside the same on one."""

import traceback
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor, distributed, nn
from torch.testing import assert_close

from trainer.config import ContextMessages
from trainer.parallel.chunks import own_ranges
from trainer.parallel.context import share_sequences
from trainer.parallel.layout import Layout
from trainer.workloads.llama import attend_causally

LENGTH = 24
LAYOUTS = (Layout(cp=4), Layout(cp=2, tp=2), Layout(dp_shard=2, cp=2))
NUM_HEADS = ((4, 4), (4, 2), (6, 1))
"""Of queries, and of keys and values."""


class Model(nn.Module):
    """As much of one as is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = attend_causally

    def forward(self, _tokens: Tensor, positions: Tensor | None = None) -> Tensor | None:
        """Return what it was given."""
        return positions


def compare(rank: int, port: int, folder: Path) -> None:
    """Compare in every layout; a mistake is written to a file of this rank's."""
    try:
        address = f"tcp://127.0.0.1:{port}"
        distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=4)
        for layout in LAYOUTS:
            cp_rank = layout.coordinates(rank)["cp"]
            ranges = own_ranges(LENGTH, layout.cp, cp_rank)
            positions = torch.tensor([place for part in ranges for place in part])
            model = Model()
            for messages in get_args(ContextMessages):
                share_sequences(model, [model], layout, messages)
                assert_close(model(torch.zeros(1, len(positions))), positions)
                for num_heads, num_kv_heads in NUM_HEADS:
                    _compare(model, positions, num_heads, num_kv_heads)
        distributed.barrier()
    except Exception:
        (folder / f"{rank}.txt").write_text(traceback.format_exc())
        raise


def _compare(model: Model, positions: Tensor, num_heads: int, num_kv_heads: int) -> None:
    """Compare results, and the gradients of queries, keys and values."""
    draw = torch.Generator().manual_seed(num_heads * num_kv_heads)
    heads = (num_heads, num_kv_heads, num_kv_heads, num_heads)
    *whole, gradient = (torch.randn(2, n, LENGTH, 8, generator=draw) for n in heads)
    own = [x[:, :, positions].requires_grad_() for x in whole]
    for x in whole:
        x.requires_grad_()
    expected, found = attend_causally(*whole), model.attend(*own)
    assert_close(found, expected[:, :, positions])
    expected.backward(gradient)
    found.backward(gradient[:, :, positions])
    for x, x_own in zip(whole, own, strict=True):
        assert x.grad is not None
        assert_close(x_own.grad, x.grad[:, :, positions])
