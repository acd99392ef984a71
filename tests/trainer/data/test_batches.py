import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from trainer.data.batch_plan import plan_batches
from trainer.data.batches import LoadedBatches, TensorBatches, build_batches, permutation
from trainer.workloads.base import TensorData

CPU = torch.device("cpu")


class Numbers(Dataset[Any]):
    """Sample i is the number i."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([float(index)]), index


def numbers(count: int, kind: str) -> Any:
    """As many numbers, as tensors or as a dataset."""
    if kind == "loaded":
        return Numbers(count)
    return TensorData(inputs=torch.arange(count).float().view(-1, 1), targets=torch.arange(count))


def seen(kind: str, *, world: int = 1, micro: int = 2, epoch: int = 0, first: int = 0) -> list[int]:
    """The samples of all ranks, step by step."""
    count, batch = 50, 12
    by_rank = []
    for rank in range(world):
        plan = plan_batches(
            global_batch_size=batch,
            micro_batch_size=micro,
            dp_rank=rank,
            dp_size=world,
            may_rest=True,
        )
        batches = build_batches(numbers(count, kind), plan, seed=5, device=CPU, num_workers=0)
        steps: list[list[int]] = []
        for number, (inputs, targets) in enumerate(batches.epoch(epoch, first)):
            assert inputs.flatten().tolist() == targets.tolist()
            assert len(targets) == plan.microbatch_sizes[number % plan.num_microbatches]
            if number % plan.num_microbatches == 0:
                steps.append([])
            steps[-1] += targets.tolist()
        by_rank.append(steps)
    return [i for step in zip(*by_rank, strict=True) for part in step for i in part]


@pytest.mark.parametrize("kind", ["tensor", "loaded"])
@pytest.mark.parametrize(("world", "micro"), [(1, 12), (2, 3), (3, 4), (6, 1), (1, 5), (2, 4)])
def test_every_split_sees_the_permutation_in_order(kind: str, world: int, micro: int) -> None:
    """Whatever the ranks and microbatches, step s is perm(seed, epoch)[s*G:(s+1)*G]."""
    expected = permutation(5, 0, 50)[:48].tolist()
    assert seen(kind, world=world, micro=micro) == expected


@pytest.mark.parametrize("kind", ["tensor", "loaded"])
def test_a_resume_goes_on_with_the_next_sample(kind: str) -> None:
    """Starting at step 2 of an epoch is the tail of the whole epoch."""
    assert seen(kind, epoch=3, first=2) == seen(kind, epoch=3)[24:]


def test_each_epoch_and_each_seed_shuffles_anew() -> None:
    """Also seed 1, epoch 1 is not seed 2, epoch 0; the same pair is always the same."""
    orders = {(s, e): tuple(permutation(s, e, 100).tolist()) for s in range(4) for e in range(4)}
    assert len(set(orders.values())) == 16
    assert all(sorted(order) == list(range(100)) for order in orders.values())
    assert tuple(permutation(2, 1, 100).tolist()) == orders[2, 1]
    permutation(2**63 - 1, 10**6, 10)  # the largest seed does not overflow


@pytest.mark.parametrize("kind", ["tensor", "loaded"])
def test_an_evaluation_goes_once_through_its_range(kind: str) -> None:
    """In order, and its last batch may be short."""
    plan = plan_batches(global_batch_size=2, micro_batch_size=None, dp_rank=0, dp_size=1)
    batches = build_batches(numbers(2500, kind), plan, seed=1, device=CPU, num_workers=0)
    found = [int(i) for _, targets in batches.evaluation(range(7, 2345)) for i in targets]
    assert found == list(range(7, 2345))


def test_the_way_follows_the_data() -> None:
    """Tensors are indexed, datasets are loaded; workers give the same samples."""
    plan = plan_batches(global_batch_size=4, micro_batch_size=None, dp_rank=0, dp_size=1)
    ways = [
        build_batches(numbers(9, kind), plan, seed=1, device=CPU, num_workers=2)
        for kind in ("tensor", "loaded")
    ]
    assert [type(way) for way in ways] == [TensorBatches, LoadedBatches]
    first, second = ([t.tolist() for _, t in way.epoch(0, 0)] for way in ways)
    assert first == second


def python_random() -> float:
    """Draw from Python's global generator."""
    return random.random()  # noqa: S311 -- no secret


class Noisy(Numbers):
    """A sample is its number and what each generator says to it."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        drawn = [torch.rand(()).item(), python_random(), np.random.rand()]  # noqa: NPY002
        return torch.tensor([float(index), *drawn], dtype=torch.float64), index


def noisy(
    *, world: int = 1, workers: int = 0, micro: int = 2, first: int = 0, epoch: int = 1
) -> dict[int, list[float]]:
    """What each sample of an epoch comes to."""
    found = {}
    for rank in range(world):
        plan = plan_batches(
            global_batch_size=12, micro_batch_size=micro, dp_rank=rank, dp_size=world
        )
        batches = build_batches(Noisy(50), plan, seed=5, device=CPU, num_workers=workers)
        for inputs, targets in batches.epoch(epoch, first):
            found.update(zip(targets.tolist(), inputs.tolist(), strict=True))
    return found


def test_a_sample_does_not_depend_on_who_loads_it() -> None:
    """Nor on microbatches, or where a run was resumed: its augmentation is its own."""
    expected = noisy()
    assert len(expected) == 48
    assert len({tuple(values[1:]) for values in expected.values()}) == 48
    assert noisy(workers=2) == expected
    assert noisy(world=3, micro=4) == expected
    later = noisy(first=2, workers=1)
    assert later == {sample: expected[sample] for sample in later}
    assert len(later) == 24
    other = noisy(epoch=2)
    assert all(other[sample] != expected[sample] for sample in set(other) & set(expected))


@pytest.mark.parametrize("workers", [0, 1])
def test_loading_leaves_the_ranks_generators_alone(workers: int) -> None:
    """So the masks of a dropout do not depend on how many workers there are."""
    torch.manual_seed(3)
    random.seed(3)
    expected = torch.rand(2).tolist(), python_random()
    torch.manual_seed(3)
    random.seed(3)
    noisy(workers=workers)
    plan = plan_batches(global_batch_size=12, micro_batch_size=None, dp_rank=0, dp_size=1)
    batches = build_batches(Noisy(50), plan, seed=5, device=CPU, num_workers=workers)
    once, again = ([x.tolist() for x, _ in batches.evaluation(range(9))] for _ in range(2))
    assert once == again
    assert (torch.rand(2).tolist(), python_random()) == expected
