"""How many ranks a job gets, and where several would each train alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jobs.backends.local import count_gpus

if TYPE_CHECKING:
    from conftest import Scripts


def test_one_task_per_node(slurm: Scripts) -> None:
    """DDP_NPROC_PER_NODE ranks on each node, started by torchrun from one task."""
    result = slurm.run("prelaunch.sh", "--dry-run", SLURM_NTASKS="2", DDP_NPROC_PER_NODE="8")
    assert "--ntasks=2" in result.step
    assert result.setting("WORLD_SIZE") == "16"


PLAIN = {"SLURM_NTASKS": "", "SLURM_GPUS_ON_NODE": "8", "SLURM_GPUS_PER_NODE": "8"}


def test_gpus_and_no_tasks_are_a_rank_per_gpu(slurm: Scripts) -> None:
    """sbatch --nodes=2 --gpus-per-node=8, for ours and any command; the settings say so."""
    for command in (("--epochs", "3"), ("--", "true")):
        result = slurm.run("prelaunch.sh", "--dry-run", *command, **PLAIN)
        assert result.code == 0, result.err
        assert "--ntasks=2" in result.step
        assert result.setting("WORLD_SIZE") == "16"
        assert result.setting("DDP_NPROC_PER_NODE") == "8"
        assert "a rank per GPU: no tasks were asked for" in result.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "world_size"),
    [
        ({"SLURM_NTASKS_PER_NODE": "1"}, "2"),
        ({"SLURM_NTASKS": "2"}, "2"),
        ({"DDP_NPROC_PER_NODE": "4"}, "8"),
        ({"SLURM_GPUS": "12", "SLURM_GPUS_PER_NODE": ""}, "2"),
        ({"SLURM_GPUS": "16", "SLURM_GPUS_PER_NODE": ""}, "16"),
        ({"SLURM_GPUS_ON_NODE": "1"}, "2"),
    ],
)
def test_who_asks_for_tasks_gets_them(
    slurm: Scripts, asked: dict[str, str], world_size: str
) -> None:
    """Nor is it guessed where nodes may have different numbers of GPUs."""
    result = slurm.run("prelaunch.sh", "--dry-run", **PLAIN | asked)
    assert result.code == 0, result.err
    assert result.setting("WORLD_SIZE") == world_size


@pytest.mark.parametrize(
    ("visible", "num"),
    [
        ("", 0),
        ("-1", 0),
        ("NoDevFiles", 0),
        ("0,-1,1", 1),
        ("0,1,", 2),
        (" 3 , 4", 2),
        ("GPU-2a,MIG-7a", 2),
    ],
)
def test_gpus_that_cuda_sees(visible: str, num: int) -> None:
    """None of those behind a word that names nothing."""
    assert count_gpus({"CUDA_VISIBLE_DEVICES": visible}) == num


def test_a_launcher_of_ones_own_keeps_its_one_task_a_node(slurm: Scripts) -> None:
    """It starts the ranks itself, once it is told of the other nodes."""
    words = ("torchrun", "--nnodes=2", "--nproc-per-node=8", "train.py")
    slurm.fake("torchrun", "true")
    result = slurm.run("prelaunch.sh", "--dry-run", "--", *words, **PLAIN)
    assert result.code == 0, result.err
    assert result.setting("WORLD_SIZE") == "2"


@pytest.mark.parametrize(
    "told",
    [
        {"WORLD_SIZE": "4", "RANK": "1", "MASTER_ADDR": "pod-0"},
        {"PET_NNODES": "1:4"},
        {"OMPI_COMM_WORLD_SIZE": "2"},
        {"PMI_SIZE": "16"},
        {"SM_HOSTS": '["algo-1","algo-2"]'},
    ],
    ids=lambda told: next(iter(told)),
)
def test_several_ranks_outside_slurm_are_refused(scripts: Scripts, told: dict[str, str]) -> None:
    """Each pod, rank or host would train alone; one line, 64, and nothing is left behind."""
    result = scripts.run("prelaunch.sh", **told)
    assert result.code == 64
    assert f"found no Slurm job and {next(iter(told))}=" in result.err
    assert result.err.count("\n") == 1
    assert not (scripts.directory / "out").exists()


def test_one_rank_by_another_launcher_is_no_mistake(scripts: Scripts) -> None:
    """A single pod or host has nobody beside it."""
    alone = {"WORLD_SIZE": "1", "RANK": "0", "SM_HOSTS": '["algo-1"]', "PET_NNODES": "1"}
    assert scripts.run("prelaunch.sh", "--dry-run", **alone).code == 0


def test_ranks_per_node_that_disagree(slurm: Scripts) -> None:
    """Two tasks a node and three ranks a node cannot both be."""
    result = slurm.run("prelaunch.sh", DDP_NPROC_PER_NODE="3")
    assert result.code == 64
    assert "found 3 and 2" in result.err
