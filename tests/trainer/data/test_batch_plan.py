import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.batch_plan import BatchPlan, plan_batches, shard
from trainer.errors import UserError


def plan(
    batch: int, micro: int | None = None, rank: int = 0, world: int = 1, *, may_rest: bool = False
) -> BatchPlan:
    """A plan with short names."""
    return plan_batches(
        global_batch_size=batch,
        micro_batch_size=micro,
        dp_rank=rank,
        dp_size=world,
        may_rest=may_rest,
    )


@given(
    world=st.integers(1, 9),
    micro=st.integers(1, 9),
    count=st.integers(1, 5),
    step=st.integers(0, 9),
)
def test_ranks_together_cover_each_global_batch_once(
    world: int, micro: int, count: int, step: int
) -> None:
    """Step s trains on samples s*G to (s+1)*G, each on one rank, in order."""
    batch = world * micro * count
    covered: list[int] = []
    for rank in range(world):
        part = plan(batch, micro, rank, world).rank_slice(step)
        covered += range(part.start, part.stop)
    assert covered == list(range(step * batch, (step + 1) * batch))


def test_without_a_microbatch_a_ranks_share_is_one() -> None:
    """No accumulation unless it is asked for."""
    assert (plan(64, None, 0, 4).micro_batch_size, plan(64, None, 0, 4).num_microbatches) == (16, 1)
    assert plan(64, 4, 0, 4).num_microbatches == 4


@pytest.mark.parametrize(("batch", "micro", "world"), [(65, None, 2), (64, 5, 2), (8, 16, 1)])
def test_a_batch_that_does_not_divide_is_an_error(batch: int, micro: int, world: int) -> None:
    """It is never rounded; the message names a size that would do."""
    with pytest.raises(UserError, match=r"--global-batch-size must be a multiple of .* take \d+"):
        plan(batch, micro, 0, world)


@pytest.mark.parametrize(
    ("batch", "micro", "world", "sizes"),
    [
        (2048, 10, 8, [10] * 25 + [6]),  # tinyllama's job
        (64, 16, 2, [16, 16]),
        (8, 16, 1, [8]),
        (7, 3, 1, [3, 3, 1]),
    ],
)
def test_a_ranks_last_microbatch_may_be_smaller_where_a_loss_is_a_sum(
    batch: int, micro: int, world: int, sizes: list[int]
) -> None:
    """The global batch stays what it is."""
    cut = plan(batch, micro, world - 1, world, may_rest=True)
    assert cut.microbatch_sizes == sizes
    assert cut.num_microbatches == len(sizes)
    assert cut.rank_batch_size == sum(sizes) == batch // world


def test_ranks_have_equal_shares_in_any_case() -> None:
    """Or the quicker ones would wait in each step."""
    with pytest.raises(UserError, match="65 with 2 ranks; take 66"):
        plan(65, 10, 0, 2, may_rest=True)


def test_an_epoch_is_whole_batches_and_at_least_one() -> None:
    """What is left over waits for the next shuffle; fewer samples than a batch are an error."""
    assert plan(64).steps_per_epoch(60_000) == 937
    with pytest.raises(UserError, match="64 with 63 samples"):
        plan(64).steps_per_epoch(63)


@given(num_samples=st.integers(0, 500), world=st.integers(1, 17))
def test_shards_hold_each_sample_once(num_samples: int, world: int) -> None:
    """An evaluation counts no sample twice and forgets none, also when it does not divide."""
    samples = [i for rank in range(world) for i in shard(num_samples, rank, world)]
    assert samples == list(range(num_samples))
