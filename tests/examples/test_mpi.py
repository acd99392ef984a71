"""Ranks that find each other by MPI: started by srun as DDP_MPI says, or by mpirun in place."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.environment import python_with
from tests.examples.conftest import EXAMPLES, PRELAUNCH

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.examples.conftest import Example

TWO_BY_TWO = ("--nodes=2", "--ntasks-per-node=2")
CONTRACT = """
import os
import torch
from mpi4py import MPI
comm = MPI.COMM_WORLD
torch.distributed.init_process_group("gloo")  # env://
total = torch.ones(1)
torch.distributed.all_reduce(total)
sizes = comm.Get_size(), os.environ["WORLD_SIZE"], comm.allreduce(1), int(total)
print("ranks", comm.Get_rank(), os.environ["RANK"], torch.distributed.get_rank(), "of", *sizes)
torch.distributed.destroy_process_group()
"""

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.skipif(
        not list(Path("/usr/lib").glob("*/pmix2/lib/libpmix.so")),
        reason="Slurm's PMIx plugin needs libpmix.so: apt-get install libpmix-dev",
    ),
]


@pytest.mark.parametrize("example", ["tasks"], indirect=True)
def test_srun_starts_its_ranks(example: Callable[[str], Example]) -> None:
    """DDP_MPI=pmix: one world of four; a killed rank ends it, and all go on from the checkpoint."""
    it = example("mpi")
    run = it.start("python train.py --steps 200", DDP_MPI="pmix")
    run.wait_for_word(" of 4, RANK ", 4)
    for rank in range(4):
        log = (run.run_dir / "logs" / f"rank-{rank}.log").read_text()
        assert f"MPI rank {rank} of 4, RANK {rank} of 4" in log
    it.goes_on_after_a_kill(may_be_silent=True)  # PMIx kills the whole step in milliseconds


@pytest.mark.parametrize("example", ["in place"], indirect=True)
def test_mpirun_starts_them_in_one_rank(example: Callable[[str], Example]) -> None:
    """Without Slurm: mpirun is the job's one rank; it ends with a killed process, and goes on."""
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    it = example("mpi")
    run = it.start("mpirun -n 2 python train.py --steps 200", DDP_NPROC_PER_NODE="1", **as_root)
    run.wait_for_word("MPI rank 1 of 2, RANK 0 of 1", timeout_s=60)
    mpirun = run.pid(0)
    it.kill(int(Path(f"/proc/{mpirun}/task/{mpirun}/children").read_text().split()[-1]))
    assert run.end(timeout_s=120) == ("COMPLETED", 0, 0), run.log
    assert it.last("finished at", 2) > it.last("resumed at", 2) >= it.last("saved", 1) > 0
    assert run.all_gone()


def test_torchs_ranks_agree_with_mpis(job: Any, tmp_path: Path) -> None:
    """RANK is the rank in MPI_COMM_WORLD, and a process group of torch works beside MPI."""
    python = python_with(EXAMPLES / "mpi" / "requirements.txt")
    (tmp_path / "contract.py").write_text(CONTRACT)
    done = job(*TWO_BY_TWO, PRELAUNCH, "--", python, "contract.py", DDP_MPI="pmix")
    assert done.end() == ("COMPLETED", 0, 0), done.log
    found = sorted(line for line in done.log.splitlines() if "] ranks " in line)
    assert found == [f"[{rank}] ranks {rank} {rank} {rank} of 4 4 4 4" for rank in range(4)]


@pytest.mark.parametrize(
    ("words", "env", "told"),
    [
        (TWO_BY_TWO, {"DDP_MPI": "openmpi"}, "found 'openmpi' where it shows "),
        (("--nodes=2", "--ntasks-per-node=1"), {"DDP_MPI": "pmix", "DDP_NPROC_PER_NODE": "2"},
         "use --ntasks-per-node instead of DDP_NPROC_PER_NODE"),
    ],
)  # fmt: skip
def test_what_mpi_cannot_do(job: Any, words: list[str], env: dict[str, str], told: str) -> None:
    """One line of the job's log, and 64: no rank is started."""
    done = job(*words, PRELAUNCH, "--", "true", **env)
    assert done.end() == ("FAILED", 64, 0)
    assert told in done.log.splitlines()[-1]
    assert not done.run_dir.exists()
