"""What each rank has for itself, on another number of ranks."""

import torch

from trainer.checkpoint.tensors import destinations, gather_rank, restore_rank
from trainer.data import generators

CPU = torch.device("cpu")


def saved_by(world_size: int) -> dict[str, torch.Tensor]:
    """What so many ranks leave in a checkpoint: rank r has lost r + 1 so far."""
    tensors = {}
    for rank in range(world_size):
        generators.seed_all(100 + rank)
        tensors |= gather_rank(rank, torch.tensor(rank + 1.0, dtype=torch.float64), CPU)
    return tensors


def resume(tensors: dict[str, torch.Tensor], rank: int, world_size: int) -> tuple[float, float]:
    """This rank's sum of losses, and the first number that it draws."""
    entries = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
    wanted = destinations(entries, torch.nn.Linear(1, 1), rank)
    loss_sum = restore_rank(
        {name: tensors[name] for name in wanted},
        rank=rank,
        world_size=world_size,
        device=CPU,
        seed=7,
    )
    return loss_sum.item(), torch.rand(()).item()


def first_draw(seed: int) -> float:
    """What a fresh generator gives."""
    generators.seed_all(seed)
    return torch.rand(()).item()


def test_the_same_ranks_get_back_what_is_theirs() -> None:
    """Losses and generators."""
    tensors = saved_by(3)
    found = [resume(tensors, rank, 3) for rank in range(3)]
    assert found == [(rank + 1.0, first_draw(100 + rank)) for rank in range(3)]


def test_more_ranks_are_seeded_anew_and_the_mean_loss_stays() -> None:
    """Two ranks of losses 1 and 2 become four: their sum counts as much as before."""
    tensors = saved_by(2)
    found = [resume(tensors, rank, 4) for rank in range(4)]
    assert [loss for loss, _ in found] == [(1 + 2) * 4 / 2, 0, 0, 0]
    assert [draw for _, draw in found] == [first_draw(seed) for seed in (100, 101, 7, 7)]


def test_fewer_ranks_use_what_exists() -> None:
    """No losses are lost with the ranks that are gone."""
    assert resume(saved_by(3), 0, 1) == ((1 + 2 + 3) / 3, first_draw(100))
