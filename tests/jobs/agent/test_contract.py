"""The rank contract from Slurm's variables, from torchrun's, and for a single process."""

from __future__ import annotations

import pytest

from jobs.agent.contract import (
    resolve,
    tasks_of_node,
    with_torchrun_names,
)
from jobs.checks import whole_number
from jobs.messages import UsageError

SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3)",
    "SLURMD_NODENAME": "n3",
    "MASTER_ADDR": "n1",
    "MASTER_PORT": "12345",
}
NUMBERS = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "6",
    "LOCAL_WORLD_SIZE": "2",
    "NODE_RANK": "2",
}
TORCHRUN = NUMBERS | {"MASTER_ADDR": "n1", "MASTER_PORT": "12345"}


def test_a_task_of_slurms_is_a_rank() -> None:
    """Every number of the contract comes from the step's own."""
    found = resolve(SLURM)
    assert not found.is_node_task
    assert found.environ == SLURM | NUMBERS | {"DDP_NODE": "n3"}


def test_numbers_of_the_job_where_slurm_does_not_tell_the_steps() -> None:
    """SLURM_NTASKS and SLURM_TASKS_PER_NODE are what an old srun has."""
    old = {name: value for name, value in SLURM.items() if "STEP_" not in name}
    old |= {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "6", "SLURM_TASKS_PER_NODE": "2(x3)"}
    assert resolve(old).environ.items() >= NUMBERS.items()


@pytest.mark.parametrize("name", list(NUMBERS))
def test_what_agrees_stays_and_what_disagrees_is_an_error(name: str) -> None:
    """Pyxis sets RANK and LOCAL_RANK, too: nothing is silently overwritten."""
    assert resolve(SLURM | {name: NUMBERS[name]}).environ[name] == NUMBERS[name]
    with pytest.raises(UsageError, match=f"{name} must agree .* found {name}=7 and expected"):
        resolve(SLURM | {name: "7"})


def test_a_task_that_is_alone_where_others_are_not_is_a_rank() -> None:
    """torchrun fills either every node or none."""
    uneven = {"SLURM_STEP_TASKS_PER_NODE": "3,2,1", "DDP_NPROC_PER_NODE": "3"}
    found = resolve(SLURM | uneven | {"SLURM_LOCALID": "0"})
    assert not found.is_node_task
    assert found.environ["LOCAL_WORLD_SIZE"] == "1"


def test_one_task_of_a_node_that_torchrun_fills() -> None:
    """It has no rank of its own, whatever Pyxis has made of it."""
    task = SLURM | {"SLURM_STEP_TASKS_PER_NODE": "1(x3)", "DDP_NPROC_PER_NODE": "4", "RANK": "2"}
    found = resolve(task)
    assert (found.is_node_task, found.num_nodes) == (True, 3)
    assert found.environ["NODE_RANK"] == "2"
    assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"} & set(found.environ)


def test_a_step_that_is_one_of_several() -> None:
    """The supervisor numbers it, whatever Slurm says; and torchrun learns where the others are."""
    own = {"DDP_TASK_RANK": "2", "WORLD_SIZE": "3", "DDP_LAUNCH_ID": "7.1", "RANK": "0"}
    found = resolve(SLURM | {"SLURM_PROCID": "0"} | own).environ
    numbers = [found[name] for name in NUMBERS]
    assert numbers == ["2", "0", "3", "1", "2"]
    assert found["DDP_NODE"] == "n3"
    assert "DDP_TASK_RANK" not in found
    assert found["PET_RDZV_ENDPOINT"] == "n1:12345"
    assert (found["PET_RDZV_ID"], found["PET_RDZV_CONF"]) == ("7.1", "is_host=0")
    assert "PET_RDZV_ID" in found["DDP_CHOSEN"].split()
    first = own | {"DDP_TASK_RANK": "0", "PET_RDZV_ID": "mine", "PET_RDZV_CONF": "timeout=9"}
    found = resolve(SLURM | first).environ
    assert (found["PET_RDZV_ID"], found["PET_RDZV_CONF"]) == ("mine", "timeout=9,is_host=1")


def test_a_rank_of_torchruns() -> None:
    """Its numbers count, also within a step of Slurm's; its node's is called GROUP_RANK."""
    given = {name: value for name, value in TORCHRUN.items() if name != "NODE_RANK"}
    assert resolve(given | {"GROUP_RANK": "2"}).environ.items() >= TORCHRUN.items()
    assert resolve(given).environ["NODE_RANK"] == "0"


@pytest.mark.parametrize(
    "name", ["LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
)
def test_half_a_contract_is_named(name: str) -> None:
    """Several ranks never quietly become several runs of one."""
    with pytest.raises(UsageError, match=f"found RANK=5 without {name}; set all, or none"):
        resolve(TORCHRUN | {name: ""})


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ({"LOCAL_WORLD_SIZE": "c"}, "LOCAL_WORLD_SIZE must be a whole number from 1 to 6"),
        ({"LOCAL_WORLD_SIZE": "7"}, "LOCAL_WORLD_SIZE must be a whole number from 1 to 6"),
        ({"LOCAL_RANK": "2"}, "LOCAL_RANK must be a whole number from 0 to 1"),
        ({"NODE_RANK": "-1"}, "NODE_RANK must be a whole number from 0 to 5"),
        ({"RANK": "6"}, "RANK must be a whole number from 0 to 5"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE must be a whole number from 1 to"),
        ({"MASTER_PORT": "99999"}, "from 1 to 65535; found '99999'; set it and MASTER_ADDR"),
    ],
)
def test_a_rank_that_cannot_be(wrong: dict[str, str], rule: str) -> None:
    """A number out of range is told with its bounds."""
    with pytest.raises(UsageError, match=rule):
        resolve(TORCHRUN | wrong)


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PET_NNODES"])
def test_one_of_several_that_another_launcher_started(name: str) -> None:
    """Each would train alone, and nobody would notice."""
    with pytest.raises(UsageError, match=f"several ranks .*; found .*{name}=2, by which .*RANK"):
        resolve({name: "2"})
    assert resolve({name: "1"}).environ["WORLD_SIZE"] == "1"
    assert resolve(TORCHRUN | {name: "6"}).environ["RANK"] == "5"


def test_a_single_process() -> None:
    """By hand it is rank 0 of 1, with a port of its own; an address that is set stays."""
    alone = resolve({}).environ
    assert (alone["RANK"], alone["WORLD_SIZE"], alone["MASTER_ADDR"]) == ("0", "1", "127.0.0.1")
    assert 1024 < int(alone["MASTER_PORT"]) < 65536
    assert alone["DDP_NODE"]
    assert resolve({"MASTER_PORT": "4711", "DDP_NODE": "x"}).environ["MASTER_PORT"] == "4711"
    with pytest.raises(UsageError, match="found WORLD_SIZE=2 and expected 1"):
        resolve({"WORLD_SIZE": "2"})


@pytest.mark.parametrize("value", ["", "08", "1_0", " 1", "-1", "1.0", "٣", "1" * 10])
def test_what_is_no_whole_number(value: str) -> None:
    """What Python's int() or a shell would take for one is not one here."""
    with pytest.raises(UsageError, match="X must be a whole number from 0 to 9"):
        whole_number("X", value, 0, 9)


@pytest.mark.parametrize(
    ("spec", "counts"), [("2(x3),1", [2, 2, 2, 1]), ("4", [4]), ("1,2(x2),8", [1, 2, 2, 8])]
)
def test_tasks_of_a_node(spec: str, counts: list[int]) -> None:
    """Slurm's compressed list of tasks per node is read for every node."""
    assert [tasks_of_node(spec, node) for node in range(len(counts))] == counts
    with pytest.raises(UsageError, match=f"must cover node {len(counts)}; found '"):
        tasks_of_node(spec, len(counts))


@pytest.mark.parametrize("spec", ["", "x", "2(x", "2(x),1"])
def test_tasks_of_a_node_that_nobody_tells(spec: str) -> None:
    """Half an environment is one line."""
    with pytest.raises(UsageError, match="is the step's environment complete"):
        tasks_of_node(spec, 9)


RUN = NUMBERS | {"DDP_ATTEMPT": "3", "DDP_RUN_DIR": "/r", "DDP_CHOSEN": "DDP_SEED"}


def test_what_else_torchrun_sets() -> None:
    """A program that is written for it finds all of it; what is set already stays."""
    found = with_torchrun_names(RUN | {"DDP_MAX_RESTARTS": "5", "ROLE_NAME": "mine"})
    expected = {
        "GROUP_RANK": "2",
        "GROUP_WORLD_SIZE": "3",
        "ROLE_NAME": "mine",
        "ROLE_RANK": "5",
        "ROLE_WORLD_SIZE": "6",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_MAX_RESTARTS": "5",
        "TORCHELASTIC_ERROR_FILE": "/r/debug/error-3-rank-5.json",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
    assert found.items() >= expected.items()
    assert set(found["DDP_CHOSEN"].split()) == {"DDP_SEED", *expected} - {"ROLE_NAME"}
    shared = with_torchrun_names(RUN | {"TORCHELASTIC_ERROR_FILE": "/of/the/job.json"})
    assert shared["TORCHELASTIC_ERROR_FILE"] == expected["TORCHELASTIC_ERROR_FILE"]


def test_nobody_takes_our_ranks_for_torchruns() -> None:
    """By TORCHELASTIC_RUN_ID Lightning would: then it does not requeue its job."""
    assert "TORCHELASTIC_RUN_ID" not in with_torchrun_names(RUN)
    theirs = RUN | {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "7"}
    assert with_torchrun_names(theirs) == theirs
