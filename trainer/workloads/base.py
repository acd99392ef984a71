"""What a workload is. Subclass `Workload` to bring your own as `package.module:Class`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from trainer.distributed import host_memory
from trainer.errors import UserError
from trainer.parallel.plan import ParallelPlan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn
    from torch.utils.data import Dataset

    from trainer.config import Config
    from trainer.parallel.plan import ForwardPlan, ParallelSizes
    from trainer.workloads.tokens import TokenData


@dataclass(frozen=True)
class TensorData:
    """A set that fits in memory, ready for the model: no transform is left to do.

    `inputs` has shape (samples, ...), `targets` has shape (samples,).
    """

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)


class UnreadableSampleError(Exception):
    """What a dataset may raise of a sample, in one text: which one, and what is wrong with it.

    Plain, so that a loader's worker can pass it on; the rank reports that text in one line.
    """


class Workload(ABC):
    """A model, its data and its loss, built from the options.

    Nothing heavy in `__init__` and `check`: they run before torch is imported, so that wrong input
    is answered at once.
    """

    default_epochs: ClassVar[int] = 1

    def __init__(self, config: Config) -> None:
        self.config = config

    def check(self) -> None:  # noqa: B027 -- nothing to check is a fair answer
        """Raise UserError if the options or the data are no good. Cheap, writes nothing."""

    def num_train_samples(self) -> int | None:
        """Return how many there are, where `check` or the options know it; else None."""
        return None

    def prepare(self) -> None:  # noqa: B027 -- so is nothing to fetch
        """Fetch what is missing. Called by one rank of each node while the others wait."""

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Return the model on the CPU, its weights drawn from torch's global generator."""

    def check_model(self) -> None:  # noqa: B027 -- most are built only to be trained
        """Raise UserError where `build_model` would; for --check, and may import torch."""

    @abstractmethod
    def train_data(self) -> TensorData | TokenData | Dataset[Any]:
        """Return the training samples; a map-style Dataset gives (input, target) pairs."""

    @abstractmethod
    def test_data(self) -> TensorData | TokenData | Dataset[Any] | None:
        """Return the held-out samples, or None if there are none."""

    def parallel_sizes(self) -> ParallelSizes | None:
        """Return the dimensions that parallelism splits; None: there is no plan for that.

        Called before torch is imported.
        """
        return None

    def parallel_plan(self) -> ParallelPlan:
        """Return how the model may be parallelized; here: as a whole, by parameters."""
        return ParallelPlan()

    def build_empty(self) -> nn.Module | None:
        """Return the model on the meta device, for one that is too large to be built whole.

        Its `init_weights(normal)` gives every parameter and buffer its first value, in the order of
        `build_model`; `normal(parameter, std)` draws. None: `build_model` is all there is.
        """
        return None

    def num_valid(self, targets: Tensor) -> Tensor | None:  # noqa: ARG002 -- for subclasses
        """Return how many targets of a microbatch count, shape (), an integer, on its device.

        None, as here: every sample counts alike, and nothing has to be counted.
        """
        return None

    @property
    def counts_targets(self) -> bool:
        """Whether `num_valid` is defined, and the loss a sum over targets."""
        return type(self).num_valid is not Workload.num_valid

    @property
    def counts_all_but_ignored(self) -> bool:
        """Whether `num_valid` counts every target but IGNORED: then data may know its answer."""
        return False

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss over a microbatch, a scalar; here cross entropy.

        It is the mean over the samples; or, with a `num_valid`, the sum over the targets that
        count, which is then divided by their number in the whole global batch.
        """
        from torch.nn.functional import cross_entropy  # noqa: PLC0415 -- see the class docstring

        return cross_entropy(outputs, targets)

    def num_correct(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        """Return how many of a batch are right, a scalar; here by the largest output.

        None, as here where targets are fractions: there is no right and wrong; then the best
        checkpoint is the one of the least loss.
        """
        if targets.is_floating_point():
            return None
        return (outputs.argmax(dim=1) == targets).sum()

    def resolved(self) -> Mapping[str, object]:
        """Return what a resume compares in place of options whose text does not say all.

        JSON values, under the options' own names or others.
        """
        return {}

    def tokens_per_sample(self) -> int | None:
        """Return how many tokens a sample has; None where it has none."""
        return None

    def flops_per_sample(self) -> float | None:
        """Return what training on a sample takes, forward and backward; None: not known."""
        return None

    def activation_bytes(self, plan: ForwardPlan) -> int | None:  # noqa: ARG002 -- as above
        """Return what one microbatch's forward keeps for its backward on a rank; None: unknown."""
        return None

    def derived(self, test_loss: float) -> Mapping[str, float]:  # noqa: ARG002 -- as above
        """Return further figures of a validation, by name, that follow from its mean loss."""
        return {}


def check_made_up(options: str, num_bytes: int) -> None:
    """Raise UserError unless made-up data of that size, by these options, fit in memory."""
    available = host_memory.num_free_bytes()
    if num_bytes > available:
        raise UserError(
            options,
            rule=f"give data for the memory at hand, {available / 2**30:.1f} GiB",
            found=f"{num_bytes / 2**30:.1f} GiB",
            remedy="lower it",
        )
