"""Text as one long row of tokens, and how samples are cut from it. No torch until one is asked for.

The row may be a memory map: only what a batch needs is read, and nothing is copied before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100
"""A target that does not count; torch's cross entropy leaves it out."""
BYTES_VOCAB_SIZE = 256
BYTES_EOS = 0xFF
"""Ends a document of bytes: UTF-8 never uses it."""

TokenRow = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, kw_only=True)
class TokenData:
    """Samples of `sequence_length` tokens and the token that follows each of them.

    Sample i has the inputs row[i*S:(i+1)*S], and as targets the same one further, S being
    `sequence_length`: each token but the first is a target once. Documents lie behind one another
    and are cut wherever that falls; the last sample is filled up, and what fills it is ignored.
    """

    row: TokenRow
    """Shape (num_tokens,), unsigned integers."""
    vocab_size: int
    sequence_length: int
    source: str
    """Where it is from, for messages."""

    def __len__(self) -> int:
        return max(0, -(-(len(self.row) - 1) // self.sequence_length))

    def gather(self, samples: TokenRow) -> tuple[Tensor, Tensor]:
        """Return inputs and targets, both of shape (samples, S), int64.

        Raises UserError for a token that the vocabulary does not have: the file is damaged.
        """
        import torch  # noqa: PLC0415 -- see above

        places = samples[:, None] * self.sequence_length + np.arange(self.sequence_length + 1)
        last = len(self.row) - 1
        tokens = self.row[np.minimum(places, last)].astype(np.int64)
        if tokens.max() >= self.vocab_size:
            raise UserError(
                self.source,
                rule=f"have tokens below {self.vocab_size}",
                found=int(tokens.max()),
                remedy="make the file again with python -m trainer.tokenize",
            )
        targets = np.where(places[:, 1:] <= last, tokens[:, 1:], IGNORED)
        return torch.from_numpy(tokens[:, :-1].copy()), torch.from_numpy(targets)

    def num_targets(self, samples: TokenRow) -> int | None:
        """Return how many targets of these samples are not IGNORED, without reading them.

        None: known only by reading, as a `gather` of another's may ignore more.
        """
        if type(self).gather is not TokenData.gather:
            return None
        num_filling = len(self) * self.sequence_length - (len(self.row) - 1)
        has_last = bool((samples == len(self) - 1).any())
        return len(samples) * self.sequence_length - num_filling * has_last


def join_documents(documents: list[bytes]) -> TokenRow:
    """Return documents as bytes, each ended by BYTES_EOS."""
    end = bytes([BYTES_EOS])
    return np.frombuffer(b"".join(document + end for document in documents), dtype=np.uint8)
