"""The kernels behind ring attention, without a GPU: torch computes their shapes alone."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from trainer.parallel.kernels import attend, attend_backward, state_like

pytestmark = pytest.mark.slow  # fake tensors import the compiler


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("num_queries", "num_keys"), [(24, 12), (12, 24)])
def test_a_gpu_takes_and_gives_what_a_cpu_does(
    dtype: torch.dtype, num_queries: int, num_keys: int
) -> None:
    """So that the compiler may be given one for all."""
    with FakeTensorMode():
        for device in ("cpu", "cuda:0"):
            q = torch.empty(2, 4, num_queries, 16, dtype=dtype, device=device)
            k, v = (torch.empty(2, 4, num_keys, 16, dtype=dtype, device=device) for _ in range(2))
            given = attend(q, k, v, is_causal=False)
            assert given.values.shape == q.shape
            assert given.log_sums.shape == q.shape[:-1]
            assert given.log_sums.dtype == torch.float32
            for state, expected in zip(given[2:], state_like(q), strict=True):
                assert (state.shape, state.dtype) == (expected.shape, expected.dtype)
                assert state.device == expected.device
            gradients = attend_backward(q, (q, k, v), given, is_causal=False)
            assert [x.shape for x in gradients] == [q.shape, k.shape, v.shape]
