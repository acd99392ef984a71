"""What a pipeline asks of model and batch. No torch."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, combinations, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.config import Config, PipelineSchedule
from trainer.errors import UserError
from trainer.parallel.checks import check_pipeline
from trainer.parallel.layout import Layout
from trainer.parallel.plan import ParallelSizes
from trainer.parallel.stages import (
    cut_evenly,
    layers_kept,
    num_stages,
    passes_kept,
    stages_of,
)

SIZES = ParallelSizes(
    num_layers=8, num_heads=8, num_kv_heads=4, ffn_dim=96, vocab_size=256, sequence_length=64
)


def check(pp: int, num_microbatches: int, *, sizes: Any = SIZES, **options: Any) -> None:
    """Check these options with `pp` ranks along the pipeline."""
    check_pipeline(Config(**options), Layout(pp=pp), sizes, num_microbatches)


@pytest.mark.parametrize(
    ("pp", "num_microbatches", "options"),
    [
        (1, 1, {"sizes": None}),  # no pipeline, no rule
        (4, 4, {}),
        (3, 3, {}),
        (8, 9, {}),
        (4, 1, {"pp_schedule": "gpipe"}),
        (2, 4, {"pp_schedule": "interleaved"}),
        (2, 1, {"pp_schedule": "interleaved", "pp_stages_per_rank": 4}),
        (4, 10, {"pp_schedule": "interleaved"}),
    ],
)
def test_what_fits_is_taken(pp: int, num_microbatches: int, options: dict[str, Any]) -> None:
    """Naive model parallelism, one microbatch, among it."""
    check(pp, num_microbatches, **options)


@pytest.mark.parametrize(
    ("pp", "num_microbatches", "options", "message"),
    [
        (
            9,
            9,
            {},
            r"--pp must have a layer for each stage; found 8 layers with 9 stages \(pp 9 x 1\)",
        ),
        (4, 4, {"pp_schedule": "interleaved", "pp_stages_per_rank": 3}, "8 layers with 12 stages"),
        (
            4,
            3,
            {},
            "--pp-schedule 1f1b must have at least as many .* found 3 with 4 stages; lower --micro",
        ),
        (4, 9, {"pp_schedule": "interleaved"}, "found 9 in 2 rounds with pp 4; take another"),
        (2, 4, {"pp_stages_per_rank": 2}, "--pp-stages-per-rank must be .* found 2 with 1f1b"),
        (2, 4, {"pp_schedule": "interleaved", "pp_stages_per_rank": 1}, "1 with interleaved"),
        (2, 4, {"sizes": None}, "--pp must be 1: workload mnist has no plan .* found 2; take ddp"),
        (
            2,
            4,
            {"sizes": replace(SIZES, is_tied=True)},
            "--pp must be 1: the model's embedding is its",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(
    pp: int, num_microbatches: int, options: dict[str, Any], message: str
) -> None:
    """Layers, microbatches, and models without a plan."""
    with pytest.raises(UserError, match=message):
        check(pp, num_microbatches, **options)


def test_stages_go_round() -> None:
    """With two stages a rank, each rank has an early and a late one."""
    config, layout = Config(pp_schedule="interleaved"), Layout(pp=4)
    assert num_stages(config, layout) == 8
    assert [list(stages_of(rank, 4, 8)) for rank in range(4)] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert num_stages(Config(), layout) == 4
    assert list(stages_of(3, 4, 4)) == [3]


@pytest.mark.parametrize(
    ("blocks", "first", "last", "count", "sizes"),
    [
        ([1] * 8, 0, 0, 4, [2, 2, 2, 2]),
        ([1] * 5, 0, 0, 2, [2, 3]),
        ([1] * 22, 0, 1.5, 4, [6, 6, 6, 4]),  # the output matrix costs a layer and a half
        ([1] * 5, 0, 0.3, 2, [3, 2]),
        ([1] * 4, 9, 0, 3, [1, 1, 2]),
        ([5, 1, 1, 1, 1, 1], 0, 0, 2, [1, 5]),
        ([1], 0, 3, 1, [1]),
    ],
)
def test_the_dearest_stage_is_as_cheap_as_can_be(
    blocks: list[float], first: float, last: float, count: int, sizes: list[int]
) -> None:
    """Layers by stage, with what the ends have besides."""
    assert cut_evenly(blocks, first, last, count) == sizes


@given(
    blocks=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    first=st.integers(0, 12),
    last=st.integers(0, 12),
    data=st.data(),
)
def test_no_other_cut_is_better(
    blocks: list[int], first: int, last: int, data: st.DataObject
) -> None:
    """Against all cuts, tried one by one."""
    count = data.draw(st.integers(1, len(blocks)))

    def costs(sizes: Sequence[int]) -> list[int]:
        ends = [0, *accumulate(sizes)]
        stages = [sum(blocks[a:b]) for a, b in pairwise(ends)]
        stages[0] += first
        stages[-1] += last
        return stages

    def badness(sizes: Sequence[int]) -> tuple[int, int]:
        return max(costs(sizes)), sum(cost * cost for cost in costs(sizes))

    total = len(blocks)
    points = combinations(range(1, total), count - 1)
    every = [[b - a for a, b in pairwise((0, *cut, total))] for cut in points]
    chosen = cut_evenly(blocks, first, last, count)
    assert sum(chosen) == total
    assert min(chosen) >= 1
    assert badness(chosen) == min(map(badness, every))


def test_more_stages_than_blocks_cannot_be_cut() -> None:
    """The caller checks before."""
    with pytest.raises(ValueError, match="from 1 to 2"):
        cut_evenly([1, 1], 0, 0, 3)


@pytest.mark.parametrize(
    ("schedule", "num_microbatches", "kept"),
    [
        ("gpipe", 6, [6, 6, 6, 6]),
        ("1f1b", 6, [4, 3, 2, 1]),
        ("1f1b", 4, [4, 3, 2, 1]),
        # Two stages a rank: a round of 4 through the first of them, and two more for each rank on.
        ("interleaved", 8, [11, 9, 7, 5]),
        ("interleaved", 4, [8, 8, 7, 5]),  # there are no more than that
    ],
)
def test_passes_that_wait_for_their_backward(
    schedule: PipelineSchedule, num_microbatches: int, kept: list[int]
) -> None:
    """By rank."""
    config, layout = Config(pp_schedule=schedule), Layout(pp=4)
    reported = [passes_kept(config, layout, pp_rank, num_microbatches) for pp_rank in range(4)]
    assert reported == kept
    assert passes_kept(Config(), Layout(), 0, num_microbatches) == 1
    per_rank = num_stages(config, layout) // 4
    layers = [
        layers_kept(config, layout, rank, num_microbatches, [1] * per_rank) for rank in range(4)
    ]
    assert layers == kept


@pytest.mark.parametrize(
    ("pp", "num_microbatches", "rank", "sizes", "kept"),
    [
        (2, 4, 0, [1, 1, 2, 1], 7),
        (2, 4, 0, [1, 1, 1, 2, 2, 1], 9),
        (4, 8, 1, [4, 4, 4, 4, 4, 5, 5, 2], 40),
        (4, 8, 3, [3, 3, 3, 3, 3, 3, 3, 1], 15),
    ],
)
def test_layers_that_wait_for_their_backward(
    pp: int, num_microbatches: int, rank: int, sizes: list[int], kept: int
) -> None:
    """Counted from the order that torch's ScheduleInterleaved1F1B gives."""
    config = Config(pp_schedule="interleaved", pp_stages_per_rank=len(sizes) // pp)
    own = [sizes[number] for number in stages_of(rank, pp, len(sizes))]
    assert layers_kept(config, Layout(pp=pp), rank, num_microbatches, own) == kept
