import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.environment import Ranks
from trainer.errors import UserError

GOOD = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "NODE_RANK": "1",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
}


def test_torchruns_variables_are_taken_as_they_are() -> None:
    """Every field has the value of its variable."""
    assert Ranks.from_environment(GOOD) == Ranks(
        rank=3,
        local_rank=1,
        world_size=4,
        local_world_size=2,
        node_rank=1,
        master_addr="node1",
        master_port=29500,
    )


def test_none_of_them_is_a_single_process() -> None:
    """A script run by hand is rank 0 of 1."""
    ranks = Ranks.from_environment({"HOME": "/"})
    assert (ranks.rank, ranks.world_size, ranks.is_main, ranks.is_node_main) == (0, 1, True, True)


@pytest.mark.parametrize("name", ["SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_one_of_several_processes_without_ranks_is_refused(name: str) -> None:
    """`srun -N2 python -m trainer` would train two runs, each alone; one process is just that."""
    with pytest.raises(UserError, match=f"and {name}=2 of "):
        Ranks.from_environment({name: "2"})
    assert Ranks.from_environment({name: "1"}).world_size == 1
    assert Ranks.from_environment({name: "4", **GOOD}).world_size == 4


def test_torchrun_calls_the_node_group() -> None:
    """torchrun sets GROUP_RANK, not NODE_RANK."""
    env = {k: v for k, v in GOOD.items() if k != "NODE_RANK"}
    assert Ranks.from_environment({**env, "GROUP_RANK": "1"}).node_rank == 1
    assert Ranks.from_environment(env).node_rank == 0


@pytest.mark.parametrize("name", [name for name in GOOD if name != "NODE_RANK"])
def test_a_half_set_contract_is_an_error_that_names_what_is_missing(name: str) -> None:
    """An absent rank never quietly becomes 0."""
    with pytest.raises(
        UserError, match=f"MASTER_PORT must all be set, or none; found {name} missing"
    ):
        Ranks.from_environment({k: v for k, v in GOOD.items() if k != name})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WORLD_SIZE", "0"),
        ("WORLD_SIZE", "-1"),
        ("RANK", "4"),
        ("RANK", "two"),
        ("RANK", "1.0"),
        ("RANK", "0_1"),
        ("RANK", " 1"),
        ("RANK", "+1"),
        ("RANK", "\u0661"),
        ("RANK", "0" * 5000),
        ("LOCAL_RANK", "2"),
        ("LOCAL_WORLD_SIZE", "5"),
        ("MASTER_PORT", "0"),
        ("MASTER_PORT", "65536"),
        ("NODE_RANK", "9"),
    ],
)
def test_a_value_out_of_range_is_an_error_that_names_it(name: str, value: str) -> None:
    """Zero ranks, a port out of range and ranks that disagree are reported, with what was found."""
    with pytest.raises(UserError, match=re.escape(f"; found {value!r}; ")) as caught:
        Ranks.from_environment({**GOOD, name: value})
    assert str(caught.value).startswith(f"{name} must be a whole number ")


@given(st.dictionaries(st.sampled_from(sorted(GOOD)), st.text(max_size=8)))
def test_no_environment_does_anything_but_answer_or_user_error(env: dict[str, str]) -> None:
    """Whatever is in the variables, the user gets ranks that agree or one clear line."""
    try:
        ranks = Ranks.from_environment(env)
    except UserError as error:
        assert "\n" not in str(error)  # noqa: PT017 -- either is fine, but not two lines
    else:
        assert 0 <= ranks.rank < ranks.world_size
