"""A language workload of which some targets do not count, unevenly over positions."""

import numpy as np
import torch
from torch import Tensor

from trainer.workloads.language import Language
from trainer.workloads.tokens import IGNORED, TokenData, TokenRow


class MaskedData(TokenData):
    """Sample i has nothing to learn at its first 5 i mod 16 positions, as with a prompt."""

    def gather(self, samples: TokenRow) -> tuple[Tensor, Tensor]:
        """Return inputs and targets."""
        inputs, targets = super().gather(samples)
        begins = torch.from_numpy(samples * 5 % 16)
        is_prompt = torch.arange(targets.shape[1]) < begins[:, None]
        return inputs, targets.masked_fill(is_prompt, IGNORED)


class Masked(Language):
    """Random tokens, and others that are held out."""

    def train_data(self) -> TokenData:
        """Return 44 samples, of which the last one is filled up."""
        return self._random(0, 700)

    def test_data(self) -> TokenData:
        """Return 11, so that they are no multiple of anything."""
        return self._random(1, 170)

    def _random(self, seed: int, num_tokens: int) -> TokenData:
        row = np.random.default_rng(seed).integers(64, size=num_tokens, dtype=np.uint16)
        return MaskedData(
            row=row, vocab_size=64, sequence_length=self.sequence_length, source="noise"
        )
