"""examples/megatron: what its page says besides the line for a laptop."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.environment import python_with
from tests.examples.conftest import EXAMPLES, InPlace

if TYPE_CHECKING:
    from tests.jobs.conftest import Scripts

pytestmark = pytest.mark.slow

FOLDER = EXAMPLES / "megatron"


def start(scripts: Scripts, *command: str, **env: str) -> InPlace:
    """Run a command with the example's packages."""
    path = f"{python_with(FOLDER / 'requirements.txt').parent}:{os.environ['PATH']}"
    run = InPlace(scripts, "--", *command, PATH=path, DDP_RUN_NAME="example", **env)
    run.end(timeout_s=240)
    return run


@pytest.mark.parametrize("axis", ["PP", "CP"])
def test_what_needs_cuda_says_so(scripts: Scripts, axis: str) -> None:
    """By one line, and 64."""
    env = {axis: "2", "DDP_NPROC_PER_NODE": "1"}
    run = start(scripts, "python", str(FOLDER / "train.py"), **env)
    assert run.end() == ("FAILED", 64, 0)
    assert "] PP and CP must be 1 without CUDA; found " in run.log


CONTRACT = """
import os
import torch
from megatron.core import parallel_state as mpu, tensor_parallel
from megatron.core.model_parallel_config import ModelParallelConfig

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
assert int(os.environ["LOCAL_RANK"]) == rank
assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
assert os.environ["MASTER_ADDR"] and os.environ["MASTER_PORT"]
torch.distributed.init_process_group("gloo", rank=rank, world_size=world_size)
mpu.initialize_model_parallel(tensor_model_parallel_size=2)
assert mpu.get_tensor_model_parallel_rank() == rank
config = ModelParallelConfig(tensor_model_parallel_size=2, use_cpu_initialization=True)
init = lambda weight: torch.nn.init.normal_(weight)
torch.manual_seed(1)
layer = tensor_parallel.ColumnParallelLinear(
    8, 6, config=config, init_method=init, bias=False, keep_master_weight_for_test=True
)
x = torch.rand(3, 8)
assert layer.weight.shape == (3, 8)
torch.testing.assert_close(layer(x)[0], x @ layer.master_weight.chunk(2)[rank].T)
print("the contract holds")
"""


def test_what_pretrain_gpt_asks_for_is_there(scripts: Scripts) -> None:
    """torchrun's variables and Megatron's own; each rank computes its half of a layer."""
    file = scripts.directory / "contract.py"
    file.write_text(CONTRACT)
    run = start(scripts, "python", str(file), CUDA_DEVICE_MAX_CONNECTIONS="1")
    assert run.log.count("the contract holds") == 2, run.log
