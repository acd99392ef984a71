"""What a pipeline asks of model and batch. No torch."""

from dataclasses import replace
from typing import Any

import pytest

from trainer.config import Config, PipelineSchedule
from trainer.errors import UserError
from trainer.parallel.layout import Layout
from trainer.parallel.plan import ParallelSizes
from trainer.parallel.stages import check_pipeline, num_stages, passes_kept, stages_of

SIZES = ParallelSizes(
    num_layers=8, num_heads=8, num_kv_heads=4, ffn_dim=96, vocab_size=256, sequence_length=64
)


def check(pp: int, num_microbatches: int, *, sizes: Any = SIZES, **options: Any) -> None:
    """Check these options with `pp` ranks along the pipeline."""
    check_pipeline(Config(**options), Layout(pp=pp), sizes, num_microbatches)


@pytest.mark.parametrize(
    ("pp", "num_microbatches", "options"),
    [
        (1, 1, {"pp_schedule": "interleaved", "sizes": None}),  # no pipeline, no rule
        (4, 4, {}),
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
        (3, 3, {}, r"--pp: stages that divide .*; found 8 layers with 3 stages \(pp 3 x 1\)"),
        (4, 4, {"pp_schedule": "interleaved", "pp_stages_per_rank": 3}, "8 layers with 12 stages"),
        (4, 3, {}, "--pp-schedule 1f1b: at least as many .* found 3 with 4 stages; lower --micro"),
        (4, 9, {"pp_schedule": "interleaved"}, "found 9 in 2 rounds with pp 4; take another"),
        (2, 4, {"pp_stages_per_rank": 2}, "--pp-stages-per-rank: .* found 2 with 1f1b"),
        (2, 4, {"pp_schedule": "interleaved", "pp_stages_per_rank": 1}, "1 with interleaved"),
        (2, 4, {"sizes": None}, "--pp: 1: workload mnist has no plan .* found 2; take ddp"),
        (2, 4, {"sizes": replace(SIZES, is_tied=True)}, "--pp: 1: the model's embedding is its"),
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
    told = [passes_kept(config, layout, pp_rank, num_microbatches) for pp_rank in range(4)]
    assert told == kept
    assert passes_kept(Config(), Layout(), 0, num_microbatches) == 1
