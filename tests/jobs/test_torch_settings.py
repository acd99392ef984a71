"""What the job's settings say to torch."""

import sys

import pytest

from tests.jobs.conftest import Scripts
from trainer.environment import TORCH_DEFAULTS

DUMP = """
from torch import distributed, ones
from torch._C import _distributed_c10d as c10d
distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
distributed.all_reduce(ones(1))
getattr(c10d, "_dump_fr_trace_file", lambda rank: None)(rank=0)  # older torches cannot be asked
distributed.destroy_process_group()
"""


def test_a_job_takes_the_trainers_nccl(scripts: Scripts) -> None:
    """Torch has two backends for it; a run is the same under torchrun and as a job."""
    name = "TORCH_DIST_USE_NCCL2"
    assert scripts.run("prelaunch.sh", "--dry-run").setting(name) == TORCH_DEFAULTS[name]


@pytest.mark.slow
def test_no_rank_warns_of_an_old_name(scripts: Scripts) -> None:
    """Torch warns on every rank where a setting has the name it had in an earlier version."""
    result = scripts.run("prelaunch.sh", "--", sys.executable, "-c", DUMP, DDP_NPROC_PER_NODE="1")
    assert result.code == 0, result.out
    assert "deprecated" not in result.out + result.err
