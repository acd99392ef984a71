"""Samples in the order that the global batch prescribes, whatever the number of ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from trainer.data import generators
from trainer.errors import UserError
from trainer.parallel.chunks import own_ranges
from trainer.workloads.base import TensorData, UnreadableSampleError
from trainer.workloads.tokens import TokenData

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import Tensor
    from torch.utils.data import Dataset

    from trainer.data.batch_plan import BatchPlan
    from trainer.workloads.checks import Data

    Batch = tuple[Tensor, Tensor]

_EVALUATION_BATCH = 250
_EVALUATION_EPOCH = -1
"""Every evaluation sees the same samples, and none of them an epoch's."""
_MAX_GATHER_BYTES = 4 << 20
"""Steps are gathered together up to this size: fewer calls, and still in the cache of a CPU."""


def permutation(seed: int, epoch: int, num_samples: int) -> Tensor:
    """Return the order of an epoch, the same on every rank and after every resume."""
    # Multiplied by a large odd number, so that (seed, epoch + 1) is not (seed + 1, epoch).
    mixed = (seed * 0x9E3779B97F4A7C15 + epoch) % 2**63
    return torch.randperm(num_samples, generator=torch.Generator().manual_seed(mixed))


def _cut(indices: range, size: int) -> list[range]:
    return [indices[i : i + size] for i in range(0, len(indices), size)]


class Batches(ABC):
    """The batches of a set, on this rank's device.

    Of sequences that ranks of cp share, each has its own positions: inputs and targets have the
    shape (samples, S), and (samples, S / cp) when cut.
    """

    evaluation_batch_size: int

    def __init__(self, data: Data, plan: BatchPlan, seed: int, device: torch.device) -> None:
        self.num_samples = len(data)  # type: ignore[arg-type] # map-style sets have a length
        self.cp, self.cp_rank = 1, 0
        self._plan = plan
        self._seed = seed
        self._device = device
        self._order = lru_cache(maxsize=1)(lambda epoch: permutation(seed, epoch, self.num_samples))

    def epoch(self, epoch: int, first_step: int) -> Iterator[Batch]:
        """Yield the microbatches of this rank from `first_step` of `epoch` on."""
        steps = range(first_step, self._plan.steps_per_epoch(self.num_samples))
        return map(self._own, self._microbatches(epoch, steps))

    def evaluation(self, indices: range) -> Iterator[Batch]:
        """Yield batches of the samples in `indices`, in order."""
        return map(self._own, self._samples(_cut(indices, self.evaluation_batch_size)))

    def num_targets(self, epoch: int, step_in_epoch: int) -> int | None:  # noqa: ARG002 -- for subclasses
        """Return how many targets of a step count, on all ranks together; None: unknown before."""
        return None

    @abstractmethod
    def _microbatches(self, epoch: int, steps: range) -> Iterator[Batch]:
        """Yield this rank's, whole."""

    @abstractmethod
    def _samples(self, batches: Sequence[range]) -> Iterator[Batch]:
        """Yield batches of samples in their own order, whole."""

    def _own(self, batch: Batch) -> Batch:
        inputs, targets = (part.to(self._device, non_blocking=True) for part in batch)
        if self.cp == 1:
            return inputs, targets
        chunks = own_ranges(inputs.shape[1], self.cp, self.cp_rank)
        own = [slice(chunk.start, chunk.stop) for chunk in chunks]
        return (
            torch.cat([inputs[:, part] for part in own], dim=1),
            torch.cat([targets[:, part] for part in own], dim=1),
        )


class TensorBatches(Batches):
    """Microbatches of a set in memory: it lies on the device once, and is gathered by index."""

    evaluation_batch_size = _EVALUATION_BATCH

    def __init__(self, data: TensorData, plan: BatchPlan, seed: int, device: torch.device) -> None:
        super().__init__(data, plan, seed, device)
        self._inputs = data.inputs.to(device)
        self._targets = data.targets.to(device)
        bytes_per_step = plan.rank_batch_size * data.inputs[0].nbytes
        self._steps_per_gather = max(1, _MAX_GATHER_BYTES // bytes_per_step)

    def _microbatches(self, epoch: int, steps: range) -> Iterator[Batch]:
        order = self._order(epoch)
        for part in _cut(steps, self._steps_per_gather):
            chosen = torch.cat([order[self._plan.rank_slice(step)] for step in part])
            # The only copy to the device: a few indices, and no wait for it.
            chosen = chosen.to(self._device, non_blocking=True)
            sizes = self._plan.microbatch_sizes * len(part)
            yield from zip(
                torch.split(self._inputs.index_select(0, chosen), sizes),
                torch.split(self._targets.index_select(0, chosen), sizes),
                strict=True,
            )

    def _samples(self, batches: Sequence[range]) -> Iterator[Batch]:
        for part in batches:
            own = slice(part.start, part.stop)
            yield self._inputs[own], self._targets[own]


class TokenBatches(Batches):
    """Microbatches of a text too long to lie on the device: each is read when it is its turn."""

    def __init__(self, data: TokenData, plan: BatchPlan, seed: int, device: torch.device) -> None:
        super().__init__(data, plan, seed, device)
        self._data = data
        self.evaluation_batch_size = plan.micro_batch_size  # what is known to fit

    def num_targets(self, epoch: int, step_in_epoch: int) -> int | None:
        """Count those that are not IGNORED, unless the data ignore more than they fill up."""
        chosen = self._order(epoch)[self._plan.global_slice(step_in_epoch)]
        return self._data.num_targets(chosen.numpy())

    def _microbatches(self, epoch: int, steps: range) -> Iterator[Batch]:
        order = self._order(epoch)
        for step in steps:
            chosen = order[self._plan.rank_slice(step)]
            for samples in torch.split(chosen, self._plan.micro_batch_size):
                yield self._gather(samples)

    def _samples(self, batches: Sequence[range]) -> Iterator[Batch]:
        for part in batches:
            yield self._gather(torch.arange(part.start, part.stop))

    def _gather(self, samples: Tensor) -> Batch:
        inputs, targets = self._data.gather(samples.numpy())
        if self._device.type == "cuda":  # pinned, so that the copy runs behind
            inputs, targets = inputs.pin_memory(), targets.pin_memory()
        return inputs, targets


class SeededSamples(torch.utils.data.Dataset[Any]):
    """A map-style dataset whose samples are drawn with generators of their own.

    Its keys are (index, seed): what a random crop does then depends on neither the worker that
    makes it, nor the rank, nor what came before.
    """

    def __init__(self, data: Dataset[Any]) -> None:
        self._data = data

    def __getitems__(self, keys: Sequence[tuple[int, int]]) -> list[Any]:
        """Return the samples of a batch."""
        if torch.utils.data.get_worker_info() is not None:
            return [self._draw(*key) for key in keys]
        with generators.undisturbed():  # the rank's own go on with the model
            return [self._draw(*key) for key in keys]

    def _draw(self, index: int, seed: int) -> Any:  # noqa: ANN401 -- whatever the dataset gives
        generators.seed_cpu(seed)
        return self._data[index]


class LoadedBatches(Batches):
    """Microbatches of a map-style dataset through DataLoader workers.

    Each sample of an epoch is seeded by (seed, epoch, its place in the epoch's order).
    """

    def __init__(
        self,
        data: Dataset[Any],
        plan: BatchPlan,
        seed: int,
        device: torch.device,
        num_workers: int,
    ) -> None:
        super().__init__(data, plan, seed, device)
        self._data = data
        self._num_workers = num_workers
        self.evaluation_batch_size = max(64, plan.micro_batch_size)

    def _microbatches(self, epoch: int, steps: range) -> Iterator[Batch]:
        size = self._plan.micro_batch_size
        slices = map(self._plan.rank_slice, steps)
        places = [part for own in slices for part in _cut(range(own.start, own.stop), size)]
        return self._load(places, self._order(epoch).tolist(), epoch)

    def _samples(self, batches: Sequence[range]) -> Iterator[Batch]:
        return self._load(batches, range(self.num_samples), _EVALUATION_EPOCH)

    def _load(self, batches: Sequence[range], order: Sequence[int], epoch: int) -> Iterator[Batch]:
        """Yield batches of the samples at such places of `order`."""
        loader: torch.utils.data.DataLoader[Any] = torch.utils.data.DataLoader(
            SeededSamples(self._data),
            batch_sampler=self._keys(batches, order, epoch),
            num_workers=self._num_workers,
            pin_memory=self._device.type == "cuda",
            generator=torch.Generator(),  # else the loader would draw from the rank's own
        )
        return _readable(loader)

    def _keys(
        self, batches: Sequence[range], order: Sequence[int], epoch: int
    ) -> Iterator[list[tuple[int, int]]]:
        """Yield the keys of `SeededSamples`, batch by batch, made when they are asked for."""
        for places in batches:
            yield [(order[i], generators.derive_seed(self._seed, epoch, i)) for i in places]


def _readable(loader: Iterable[Any]) -> Iterator[Any]:
    """Yield what is loaded. Raises UserError for a sample that cannot be read."""
    try:
        yield from map(_checked, loader)
    except UnreadableSampleError as error:
        line = str(error).splitlines()[-1]  # before it, a worker's traceback
        raise UserError(
            "data",
            rule="be samples that can be read",
            found=line.rpartition(f"{UnreadableSampleError.__name__}: ")[2],
            remedy="replace that one, or take it out",
        ) from error


def _checked(batch: object) -> Batch:
    """Raise UserError unless it is a pair of tensors: no line of torch's error were the user's."""
    match batch:
        case [torch.Tensor() as inputs, torch.Tensor() as targets]:
            return inputs, targets
    parts = batch if isinstance(batch, list | tuple) else [batch]
    raise UserError(
        "data",
        rule="be pairs of an input and a target, each a tensor or a number",
        found=f"batches of {', '.join(type(part).__name__ for part in parts)}",
        remedy="correct what the dataset returns",
    )


def build_batches(  # noqa: PLR0913 -- all of it by name
    data: Data,
    plan: BatchPlan,
    *,
    seed: int,
    device: torch.device,
    num_workers: int,
    cp: int = 1,
    cp_rank: int = 0,
) -> Batches:
    """Choose the way that suits the data; of `cp` ranks that share sequences this is `cp_rank`."""
    batches: Batches
    if isinstance(data, TensorData):
        batches = TensorBatches(data, plan, seed, device)
    elif isinstance(data, TokenData):
        batches = TokenBatches(data, plan, seed, device)
    else:
        batches = LoadedBatches(data, plan, seed, device, num_workers)
    batches.cp, batches.cp_rank = cp, cp_rank
    return batches
