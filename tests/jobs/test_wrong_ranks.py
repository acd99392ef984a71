"""The launcher's contract: a rank that cannot be is one clear line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.jobs.said import one_line

if TYPE_CHECKING:
    from conftest import Scripts

pytestmark = pytest.mark.slow


def test_launcher_refuses_a_rank_that_disagrees(scripts: Scripts) -> None:
    """RANK from somebody else is never silently overwritten."""
    slurm = {
        "SLURM_PROCID": "1",
        "SLURM_LOCALID": "1",
        "SLURM_NODEID": "0",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURMD_NODENAME": "n1",
        "MASTER_ADDR": "n1",
        "MASTER_PORT": "12345",
    }
    del scripts.env["DDP_NPROC_PER_NODE"]
    agreeing = scripts.run(
        "launcher.sh", "--", "bash", "-c", "echo $RANK/$WORLD_SIZE", RANK="1", **slurm
    )
    assert (agreeing.code, agreeing.out) == (0, "[1] 1/2\n")
    result = scripts.run("launcher.sh", "--", "true", RANK="0", **slurm)
    assert result.code == 64
    assert "expected 1; unset it in the job, or leave it out of the image" in one_line(result.err)


def test_launcher_alone_is_a_single_process(scripts: Scripts) -> None:
    """By hand, without any variables, it is rank 0 of 1."""
    result = scripts.run("launcher.sh", "--", "bash", "-c", "echo $RANK/$WORLD_SIZE $MASTER_ADDR")
    assert (result.code, result.out) == (0, "[0] 0/1 127.0.0.1\n")


def test_launcher_needs_all_of_the_contract(scripts: Scripts) -> None:
    """A half-set contract is named."""
    result = scripts.run("launcher.sh", "--", "true", RANK="0", WORLD_SIZE="2")
    assert result.code == 64
    assert "without LOCAL_RANK" in one_line(result.err)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (
            {"LOCAL_WORLD_SIZE": "c"},
            "LOCAL_WORLD_SIZE must be a whole number from 1 to 2; found 'c'",
        ),
        ({"LOCAL_WORLD_SIZE": "3"}, "LOCAL_WORLD_SIZE must be a whole number from 1 to 2"),
        ({"RANK": "2"}, "RANK must be a whole number from 0 to 1"),
        ({"MASTER_PORT": "99999"}, "MASTER_PORT must be"),
    ],
)
def test_launcher_refuses_ranks_that_cannot_be(
    scripts: Scripts, wrong: dict[str, str], told: str
) -> None:
    """A contract with a number out of range is one line."""
    right = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    right |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "12345"}
    result = scripts.run("launcher.sh", "--", "true", **(right | wrong))
    assert result.code == 64
    assert told in one_line(result.err)


STEP = {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_NODEID": "0", "SLURM_LOCALID": "0"}
STEP |= {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_STEP_NUM_NODES": "1"}
STEP |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "12345"}


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"DDP_GRACE": "x"}, "DDP_GRACE must be a whole number from 0 to 86400"),
        ({"DDP_ATTEMPT": "x"}, "DDP_ATTEMPT must be a whole number from 1 to"),
        ({"DDP_TASK_RANK": "1"}, "found DDP_TASK_RANK=1 alone; unset it"),
        ({"DDP_TASK_RANK": "1", "DDP_LAUNCH_ID": "l"}, "WORLD_SIZE must be a whole number from 1"),
        ({"SLURM_STEP_ID": "x"}, "SLURM_STEP_ID must be a whole number from 0"),
        (STEP | {"SLURM_STEP_ID": "x"}, "SLURM_STEP_ID must be a whole number from 0"),
        (STEP | {"SLURM_NODEID": ""}, "SLURM_NODEID must be a whole number from 0"),
        (STEP | {"SLURM_NODEID": "x"}, "SLURM_NODEID must be a whole number from 0"),
        (STEP | {"SLURM_LOCALID": ""}, "SLURM_LOCALID must be a whole number from 0"),
        (STEP | {"SLURM_STEP_NUM_TASKS": ""}, "SLURM_NTASKS must be a whole number from 0"),
        (STEP | {"SLURM_STEP_TASKS_PER_NODE": "1(xq)"}, "must cover node 0; found '1(xq)'"),
        (STEP | {"DDP_NPROC_PER_NODE": "x"}, "DDP_NPROC_PER_NODE must be a whole number from 1"),
        (
            STEP | {"DDP_NPROC_PER_NODE": "2", "SLURM_STEP_NUM_NODES": ""},
            "SLURM_NNODES must be a whole number from 0",
        ),
    ],
)
def test_launcher_refuses_half_a_step(scripts: Scripts, environ: dict[str, str], told: str) -> None:
    """What it reads later has to be right before anything starts, or is made."""
    del scripts.env["DDP_NPROC_PER_NODE"]
    result = scripts.run("launcher.sh", "--", "touch", "started", **environ)
    assert (result.code, result.out) == (64, ""), result.err
    assert told in one_line(result.err)
    assert len(result.err.splitlines()) == 1
    assert list(scripts.directory.iterdir()) == []


def test_launcher_runs_a_step_whose_shell_is_one_of_sallocs(scripts: Scripts) -> None:
    """Slurm's own steps have the highest numbers."""
    del scripts.env["DDP_NPROC_PER_NODE"]
    result = scripts.run("launcher.sh", "--", "true", **(STEP | {"SLURM_STEP_ID": "4294967290"}))
    assert result.code == 0, result.err


def test_launcher_needs_a_command(scripts: Scripts) -> None:
    """`launcher.sh --` asks for nothing."""
    result = scripts.run("launcher.sh", "--")
    assert result.code == 64
    assert "command must follow" in one_line(result.err)
