"""A Llama that learns to predict the next token."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from trainer.errors import UserError
from trainer.parallel.plan import ParallelSizes
from trainer.workloads import stdlib_text
from trainer.workloads.base import Workload, check_made_up
from trainer.workloads.llama_hf import is_hugging_face, read_shape, shape_named
from trainer.workloads.llama_memory import activation_bytes
from trainer.workloads.llama_presets import LLAMA_PLAN
from trainer.workloads.tokens import (
    BYTES,
    BYTES_VOCAB_SIZE,
    IGNORED,
    TokenData,
    TokenFile,
    open_tokens,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from trainer.config import Config
    from trainer.parallel.plan import ForwardPlan, ParallelPlan
    from trainer.workloads.llama_presets import LlamaShape
    from trainer.workloads.stdlib_text import Split
    from trainer.workloads.tokens import TokenRow

_FILES: dict[Split, str] = {"train": "train.tokens", "test": "val.tokens"}
_TOKEN_BYTES = np.dtype(np.uint32).itemsize
_MAX_EXPONENT = 700  # of what a float can hold
_MAX_VERIFIED_BYTES = 1 << 30  # a second or two


class Language(Workload):
    """Next-token prediction on token files, on the standard library's source, or on noise."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._open = cache(self._open_split)  # once, though checked and loaded

    def check(self) -> None:
        """Raise UserError for an unknown model, or data that does not suit it."""
        if self.config.mock_tokens:
            check_made_up("--mock-tokens", self.config.mock_tokens * _TOKEN_BYTES)
        shape, source = self.shape, self.config.init_from
        if source and is_hugging_face(source):
            length = shape.max_sequence_length  # which is no part of the weights
            if replace(read_shape(source), max_sequence_length=length) != shape:
                raise UserError(
                    f"--init-from {source}",
                    rule="be a model of the shape of --model",
                    found="another",
                    remedy="give that folder as --model, too",
                )
        if self.config.mock_tokens:
            return
        if self.config.data_dir is None:
            if shape.vocab_size < BYTES_VOCAB_SIZE:
                raise UserError(
                    f"--model {self.config.model}",
                    rule=f"have {BYTES_VOCAB_SIZE} tokens, for without --data-dir they are bytes",
                    found=shape.vocab_size,
                    remedy="take another --model, or name a --data-dir",
                )
        else:
            train, test = (self._open(split) for split in _FILES)
            if train and test:
                _check_same_tokenizer(train, test)

    def prepare(self) -> None:
        """Read files of moderate size whole, to see whether they are what was written."""
        if self.config.data_dir and not self.config.mock_tokens:
            for file in map(self._open, _FILES):
                if file is not None and file.row.nbytes <= _MAX_VERIFIED_BYTES:
                    file.verify()

    @property
    def shape(self) -> LlamaShape:
        """The model's shape."""
        return shape_named(self.config.model)

    @property
    def sequence_length(self) -> int:
        """Tokens of a sample."""
        return self.config.sequence_length or self.shape.max_sequence_length

    def build_model(self) -> nn.Module:
        """Return a new Llama."""
        from trainer.workloads.llama import build_llama  # noqa: PLC0415 -- imports torch

        return build_llama(self.shape, self.sequence_length)

    def build_empty(self) -> nn.Module:
        """Return the Llama without values."""
        from trainer.workloads.llama import empty_llama  # noqa: PLC0415 -- imports torch

        return empty_llama(self.shape, self.sequence_length)

    def parallel_sizes(self) -> ParallelSizes:
        """Return the shape's."""
        shape = self.shape
        return ParallelSizes(
            num_layers=shape.num_layers,
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            ffn_dim=shape.ffn_dim,
            vocab_size=shape.vocab_size,
            sequence_length=self.sequence_length,
            is_tied=shape.is_tied,
        )

    def parallel_plan(self) -> ParallelPlan:
        """Return how a Llama is split: attention by heads, feed-forward by channels."""
        return LLAMA_PLAN

    def num_train_samples(self) -> int | None:
        """Return how many, but of the library, which is not read for that."""
        if self.config.mock_tokens:
            return -(-(self.config.mock_tokens - 1) // self.sequence_length)  # as TokenData's
        return len(self.train_data()) if self.config.data_dir else None

    def train_data(self) -> TokenData:
        """Return the text to learn from."""
        if self.config.mock_tokens:
            return self._mock()
        data = self._read("train")
        assert data is not None  # noqa: S101 -- `check` saw to it
        return data

    def test_data(self) -> TokenData | None:
        """Return the text that is held out."""
        if self.config.mock_tokens:
            return None
        return self._read("test")

    def num_valid(self, targets: Tensor) -> Tensor:
        """Return how many targets are not IGNORED."""
        return (targets != IGNORED).sum()

    @property
    def counts_all_but_ignored(self) -> bool:
        """Whether it is this `num_valid`, and not another's."""
        return type(self).num_valid is Language.num_valid

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of -ln p(target) over all that are not IGNORED.

        `outputs` are logits of shape (B, S, V), `targets` have shape (B, S).
        """
        from torch.nn.functional import cross_entropy  # noqa: PLC0415 -- not before the check

        return cross_entropy(
            outputs.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
        )

    def num_correct(self, outputs: Tensor, targets: Tensor) -> None:
        """No accuracy for a language model: its loss says more."""

    def resolved(self) -> dict[str, object]:
        """Return the model's numbers: a default has no name, and a folder may have changed."""
        shape = asdict(self.shape)
        del shape["max_sequence_length"]  # which is no part of the weights
        numbers = {f"model {name}": value for name, value in shape.items()}
        return {"model": None, **numbers, "sequence_length": self.sequence_length}

    def tokens_per_sample(self) -> int:
        """Return the sequence's length."""
        return self.sequence_length

    def flops_per_sample(self) -> float:
        """Return the model's floating point operations; see `LlamaShape.flops_per_token`."""
        return self.sequence_length * self.shape.flops_per_token(self.sequence_length)

    def activation_bytes(self, plan: ForwardPlan) -> int:
        """Return the estimate of llama_memory.py."""
        return activation_bytes(self.shape, self.sequence_length, plan)

    def derived(self, test_loss: float) -> dict[str, float]:
        """Return the perplexity, and bits per byte where tokens are bytes."""
        perplexity = math.exp(test_loss) if test_loss < _MAX_EXPONENT else math.inf
        figures = {"test_perplexity": perplexity}
        if self._is_bytes:
            figures["test_bits_per_byte"] = test_loss / math.log(2)
        return figures

    @property
    def _is_bytes(self) -> bool:
        if self.config.mock_tokens:
            return False
        file = self._open("train") if self.config.data_dir else None
        return file is None or file.tokenizer.name == BYTES

    def _read(self, split: Split) -> TokenData | None:
        if self.config.data_dir is None:
            return self._data(stdlib_text.read(split), BYTES_VOCAB_SIZE, "the standard library")
        file = self._open(split)
        if file is None:
            return None
        return self._data(file.row, file.tokenizer.vocab_size, f"token file {file.path}")

    def _open_split(self, split: Split) -> TokenFile | None:
        """Return a split's token file; None where nothing is held out."""
        assert self.config.data_dir is not None  # noqa: S101 -- the caller's business
        path = self.config.data_dir / _FILES[split]
        if split == "test" and not path.exists():
            return None
        file = open_tokens(path)
        if file.tokenizer.vocab_size > self.shape.vocab_size:
            raise UserError(
                f"token file {path}",
                rule=f"have tokens of the model's vocabulary of {self.shape.vocab_size:,}",
                found=f"one of {file.tokenizer.vocab_size:,}",
                remedy="take another --model or tokenizer",
            )
        return file

    def _data(self, row: TokenRow, vocab_size: int, source: str) -> TokenData:
        return TokenData(
            row=row, vocab_size=vocab_size, sequence_length=self.sequence_length, source=source
        )

    def _mock(self) -> TokenData:
        """Return random tokens: for measuring speed, with nothing to learn and nothing to read."""
        vocab_size = self.shape.vocab_size
        random = np.random.default_rng(0)
        row = random.integers(vocab_size, size=self.config.mock_tokens, dtype=np.uint32)
        return self._data(row, vocab_size, "--mock-tokens")


def _check_same_tokenizer(train: TokenFile, test: TokenFile) -> None:
    """Compare what tokenizers of any name must share: else the test's loss means nothing."""
    first, second = train.tokenizer, test.tokenizer
    if (first.vocab_size, first.eos) != (second.vocab_size, second.eos):
        raise UserError(
            f"token file {test.path}",
            rule=f"be made by the tokenizer of {train.path.name}",
            found=f"{second.name} of vocabulary size {second.vocab_size}, not {first.vocab_size}",
            remedy="make it again with that one",
        )
