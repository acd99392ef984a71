"""examples/torchtitan: what runs of it without a GPU, and that the rest does not."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch

from tests.environment import python_with
from tests.examples.conftest import EXAMPLES, InPlace

if TYPE_CHECKING:
    from tests.jobs.conftest import Scripts

pytestmark = pytest.mark.slow

FOLDER = EXAMPLES / "torchtitan"
TRAIN = ("python", "-m", "torchtitan.train", "--module", "small_llama", "--config", "small")


def start(scripts: Scripts, *command: str, num_ranks: int = 2) -> InPlace:
    """Run a command with the example's packages and configuration."""
    bin_folder = python_with(FOLDER / "requirements-gpu.txt").parent
    env = {"PATH": f"{bin_folder}:{os.environ['PATH']}", "PYTHONPATH": str(FOLDER)}
    env |= {"DDP_RUN_NAME": "example", "DDP_NPROC_PER_NODE": str(num_ranks)}
    run = InPlace(scripts, "--", *command, **env)
    run.end(timeout_s=240)
    return run


def test_every_rank_reads_the_configuration(scripts: Scripts) -> None:
    """The line of its page, and with an option of torchtitan's behind it."""
    run = start(scripts, *TRAIN, "--comm.mode", "local_tensor", "--training.steps", "7")
    assert run.end() == ("COMPLETED", 0, 0), run.log
    for rank in range(2):
        log = (run.run_dir / "logs" / f"rank-{rank}.log").read_text()
        assert "Local tensor mode enabled - skipping training execution" in log


def test_a_wrong_option_ends_it(scripts: Scripts) -> None:
    """So the configuration above was really read."""
    words = ("--comm.mode", "local_tensor", "--training.stops", "7")
    run = start(scripts, *TRAIN, *words, num_ranks=1)
    assert run.end()[0] == "FAILED"
    assert "training.stops" in run.log


CONTRACT = """
import os
from small_llama import small
from torchtitan.tools.utils import get_local_device
import torch

config = small()
assert config.dump_folder == os.environ["DDP_RUN_DIR"]
torch.distributed.init_process_group("gloo")  # as torchtitan does: by the environment alone
print("ranks", torch.distributed.get_rank(), torch.distributed.get_world_size(), get_local_device())
"""


def test_it_finds_the_ranks(scripts: Scripts) -> None:
    """By torchrun's variables: which rank it is, of how many, and its GPU."""
    file = scripts.directory / "contract.py"
    file.write_text(CONTRACT)
    run = start(scripts, "python", str(file))
    for rank in range(2):
        assert f"ranks {rank} 2 cuda:{rank}" in run.log, run.log


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_it_does_not_train_on_cpus(scripts: Scripts) -> None:
    """As its page says; once it does, the page has to say so."""
    run = start(scripts, *TRAIN, "--training.disable_cuda_graphs", num_ranks=1)
    assert run.end()[0] == "FAILED"
    assert "RuntimeError: Found no NVIDIA driver" in run.log
