"""A language workload that counts targets in its own way, so that their number is unknown."""

from torch import Tensor

from trainer.workloads.language import Language


class Counted(Language):
    """As it is, but for who counts."""

    def num_valid(self, targets: Tensor) -> Tensor:
        """Return how many targets count."""
        return super().num_valid(targets)
