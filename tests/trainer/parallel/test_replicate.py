"""DistributedDataParallel as it is on a GPU, where it moves what its forward is given."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from trainer.parallel import replicate as replicating
from trainer.parallel.gradients import choose_pass

pytestmark = pytest.mark.slow


class OnGpu(DistributedDataParallel):
    """One that takes itself to be on a GPU, which is the CPU."""

    def __init__(
        self, module: nn.Module, device_ids: list[int] | None, *, gradient_as_bucket_view: bool
    ) -> None:
        super().__init__(module, gradient_as_bucket_view=gradient_as_bucket_view)
        self.device_ids, self.device_type = device_ids, "cpu"


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of one rank."""
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def steps(model: nn.Module, num_microbatches: int) -> list[float]:
    """Train a few steps; return their losses."""
    torch.manual_seed(1)
    inputs, targets = torch.randn(2, 4, 1, 3, 3), torch.randint(3, (2, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    take = choose_pass(model, num_microbatches)
    losses = []
    for _ in range(3):
        for number in range(1, num_microbatches + 1):
            with take(number == num_microbatches):
                outputs = model(inputs[number - 1])
                loss = nn.functional.cross_entropy(outputs, targets[number - 1])
                (loss / num_microbatches).backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("num_microbatches", [1, 2])
def test_on_a_gpu_it_begins_and_trains(
    monkeypatch: pytest.MonkeyPatch, num_microbatches: int
) -> None:
    """Its buckets are settled, buffers travel, and steps are those of the plain model."""
    monkeypatch.setattr(replicating, "DistributedDataParallel", OnGpu)
    losses = []
    for is_replicated in (False, True):
        torch.manual_seed(0)
        model: nn.Module = nn.Sequential(
            nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3)
        )
        if is_replicated:
            model = replicating.replicate(model, torch.device("cuda", 0))
            assert isinstance(model, OnGpu)
            assert model.device_ids == [0]
        losses.append(steps(model, num_microbatches))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_a_model_without_gradients_stays_what_it_is() -> None:
    """As with one rank, where the check of the loss names what it lacks."""
    model = nn.Identity()
    assert replicating.replicate(model, torch.device("cpu")) is model
