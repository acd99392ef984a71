"""Which layout options ask for, and what is refused. No torch."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from trainer.config import Config
from trainer.environment import Ranks
from trainer.errors import UserError
from trainer.parallel.checks import check_layout
from trainer.parallel.chunks import holders, own_ranges
from trainer.parallel.layout import Layout, plan_layout
from trainer.parallel.plan import ParallelSizes

SIZES = ParallelSizes(
    num_layers=4, num_heads=8, num_kv_heads=4, ffn_dim=96, vocab_size=256, sequence_length=66
)


def layout(world: int = 8, local: int = 4, *, sizes: Any = SIZES, **options: Any) -> Layout:
    """What these options give on `world` ranks, `local` of them on a node."""
    ranks = Ranks(world_size=world, local_world_size=local)
    planned = plan_layout(Config(**options), ranks)
    check_layout(Config(**options), planned, sizes)
    return planned


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"dp_replicate": 8}),
        ({"strategy": "fsdp"}, {"dp_shard": 8}),
        ({"dp_shard": -1}, {"dp_shard": 8}),
        ({"strategy": "hsdp"}, {"dp_replicate": 2, "dp_shard": 4}),
        ({"strategy": "hsdp", "dp_shard": 2}, {"dp_replicate": 4, "dp_shard": 2}),
        ({"dp_replicate": 2, "dp_shard": -1}, {"dp_replicate": 2, "dp_shard": 4}),
        ({"strategy": "tp"}, {"dp_replicate": 2, "tp": 4}),
        ({"tp": 2}, {"dp_replicate": 4, "tp": 2}),
        ({"strategy": "fsdp", "tp": 2}, {"dp_shard": 4, "tp": 2}),
        ({"tp": -1, "dp_replicate": 2}, {"dp_replicate": 2, "tp": 4}),
        ({"tp": 4, "dp_shard": 2, "dp_replicate": 1}, {"dp_shard": 2, "tp": 4}),
        ({"strategy": "pp"}, {"dp_replicate": 4, "pp": 2}),
        ({"strategy": "pp", "pp": 8}, {"dp_replicate": 1, "pp": 8}),
        ({"strategy": "3d"}, {"dp_shard": 2, "tp": 2, "pp": 2}),
    ],
)
def test_a_strategy_is_a_name_for_sizes(options: dict[str, Any], expected: dict[str, int]) -> None:
    """What is given beats what follows from it; -1 takes the rest."""
    assert layout(**options) == Layout(**expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dp_shard": 3}, "found dp_replicate 2 x dp_shard 3 = 6 with 8 ranks"),
        ({"dp_replicate": 1, "tp": 2}, "found tp 2 = 2 with 8 ranks; change an axis, or give one"),
        ({"dp_shard": -1, "tp": -1}, "--dp-shard, --tp must be -1 for one axis only; found 2"),
        (
            {"cp": 4},
            (
                "--cp must be such that 2 x cp divides the positions of a sequence; "
                "found 66 with cp 4;.* of 8"
            ),
        ),
        (
            {"cp": 2, "sizes": None},
            "--cp must be 1: workload mnist has no sequences to share; found 2",
        ),
        ({"tp": 8}, "--tp must divide the model's heads of keys and values; found 4 with tp 8"),
        ({"tp": 4, "sequence_parallel": True}, "positions of a sequence; found 66 with tp 4"),
        (
            {"sequence_parallel": True},
            "--sequence-parallel must have tp over 1; found tp 1; give --tp",
        ),
        ({"cp_comm_type": "all_gather"}, "--cp-comm-type must have cp over 1; found cp 1"),
        ({"pp_schedule": "gpipe"}, "--pp-schedule must have pp over 1; found pp 1; give --pp"),
        ({"pp_stages_per_rank": 1}, "--pp-stages-per-rank must have pp over 1; found pp 1"),
        (
            {"tp": 2, "sizes": None},
            "--tp must be 1: workload mnist has no plan .* found 2; take ddp",
        ),
        (
            {"cpu_offload": True},
            "--cpu-offload must have a layout that shards .* found a whole copy on each rank",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(
    options: dict[str, Any], message: str
) -> None:
    """Ranks, dimensions, and what is not built."""
    with pytest.raises(UserError, match=message):
        layout(**options)


@pytest.mark.parametrize("size", [0, -2])
def test_an_axis_has_ranks(size: int) -> None:
    """Or -1."""
    with pytest.raises(UserError, match=f"--dp-shard must be at least 1, or -1 .* found {size}"):
        Config(dp_shard=size)


def test_tp_is_innermost_and_shares_its_samples() -> None:
    """Ranks of tp lie side by side, and only the first of them is counted."""
    plan = Layout(dp_replicate=2, dp_shard=2, tp=2)
    assert plan.world_size == 8
    assert [plan.dp_rank(rank) for rank in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [plan.is_samples_leader(rank) for rank in range(8)] == [True, False] * 4
    assert plan.coordinates(5) == {"pp": 0, "dp_replicate": 1, "dp_shard": 0, "cp": 0, "tp": 1}
    assert plan.describe() == "dp_replicate 2 x dp_shard 2 x tp 2"


def test_a_pipeline_is_outermost_and_counts_at_its_end() -> None:
    """Where the loss is."""
    plan = Layout(pp=2, dp_replicate=2)
    assert [plan.coordinates(rank)["pp"] for rank in range(4)] == [0, 0, 1, 1]
    assert [plan.dp_rank(rank) for rank in range(4)] == [0, 1, 0, 1]
    assert [plan.is_samples_leader(rank) for rank in range(4)] == [False, False, True, True]
    assert [plan.is_stage_leader(rank) for rank in range(4)] == [True, False, True, False]


def test_a_single_process_is_no_layout() -> None:
    """Whatever its name."""
    for strategy in ("ddp", "fsdp", "hsdp", "tp"):
        assert not layout(1, 1, strategy=strategy).is_sharded


def test_ranks_of_cp_share_samples_but_not_targets() -> None:
    """They lie side by side but for tp; each is counted on, and holds a shard of its own."""
    plan = Layout(dp_replicate=2, cp=2, tp=2)
    assert plan.cp_groups() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert [plan.coordinates(rank)["cp"] for rank in range(8)] == [0, 0, 1, 1] * 2
    assert [plan.dp_rank(rank) for rank in range(8)] == [0] * 4 + [1] * 4
    assert [plan.is_samples_leader(rank) for rank in range(8)] == [True, False] * 4
    assert (plan.dp_size, plan.shard_size) == (2, 2)


@pytest.mark.parametrize("cp", [1, 2, 3, 4])
def test_chunks_are_shared_out_evenly(cp: int) -> None:
    """Every position is somebody's, and all attend to as many."""
    shares = [own_ranges(24, cp, rank) for rank in range(cp)]
    places = [place for share in shares for part in share for place in part]
    assert sorted(places) == list(range(24))
    assert len({sum(place + 1 for part in share for place in part) for share in shares}) == 1
    chunks = [shares[rank][half] for rank, half in holders(cp)]
    assert [part.start for part in chunks] == sorted(part.start for part in chunks)


def test_positions_are_shared_by_cp_and_then_by_tp() -> None:
    """With sequence parallel what a rank of cp has is split again."""
    sizes = replace(SIZES, sequence_length=12)
    options: dict[str, Any] = {"cp": 2, "tp": 4, "sequence_parallel": True}
    with pytest.raises(UserError, match="that a rank of cp has; found 6 with tp 4"):
        layout(sizes=sizes, **options)
    sizes = replace(SIZES, sequence_length=16)
    assert layout(sizes=sizes, **options) == Layout(cp=2, tp=4, sequence_parallel=True)


def test_cp_is_for_a_loss_that_is_a_sum_over_targets() -> None:
    """A mean over samples, of which a rank sees a part, is no mean any more."""
    sizes = replace(SIZES, sequence_length=16)
    with pytest.raises(
        UserError, match="--cp must have a workload whose loss is a sum over targets"
    ):
        check_layout(Config(cp=2), Layout(cp=2), sizes, counts_targets=False)


CHECKS = """
import sys
from trainer.__main__ import main
for options in ("lm --tp 2", "mnist --strategy fsdp", "lm --tp 4", "mnist --tp 2", "lm --pp 2"):
    print(main(["--check", "--workload", *options.split()], {"WORLD_SIZE": "4"}))
print("torch" in sys.modules)
"""


def test_a_check_needs_no_torch() -> None:
    """A wrong layout is reported before the seconds of its import."""
    done = subprocess.run(
        [sys.executable, "-c", CHECKS], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["0", "0", "64", "64", "64", "False"], done.stderr
    assert len(done.stderr.splitlines()) == 3
