"""From text to tokens and back: as bytes, or by a tokenizer.json of Hugging Face's."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.errors import UserError
from trainer.workloads.tokens import BYTES, BYTES_EOS, BYTES_VOCAB_SIZE, TokenizerInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

EOS_NAMES = ("</s>", "<|end_of_text|>", "<|endoftext|>", "<eos>", "<|im_end|>")
_DOCUMENTS_A_BATCH = 256


def load_tokenizer(name: str, eos_name: str | None = None) -> Tokenizer:
    """Return what `--tokenizer` names; `eos_name` is the token that ends a document.

    Raises UserError if it cannot be read, or if no token ends a document.
    """
    return ByteTokenizer() if name == BYTES else HuggingFaceTokenizer(Path(name), eos_name)


class ByteTokenizer:
    """A token is a byte of UTF-8."""

    info = TokenizerInfo(name=BYTES, vocab_size=BYTES_VOCAB_SIZE, eos=BYTES_EOS)

    def encode_all(self, texts: Iterable[str]) -> Iterator[bytes]:
        """Yield the bytes of each text, without the one that ends it."""
        return (text.encode() for text in texts)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of bytes; what ends a document begins a line."""
        return bytes(tokens).replace(bytes([BYTES_EOS]), b"\n").decode("utf-8", "replace")


class HuggingFaceTokenizer:
    """A tokenizer.json, by the library that made it."""

    def __init__(self, path: Path, eos_name: str | None) -> None:
        """Read it. Raises UserError if that cannot be, or if no token ends a document."""
        self._tokenizer = _read_tokenizer(path)
        names = [eos_name] if eos_name else EOS_NAMES
        ids = (self._tokenizer.token_to_id(name) for name in names)
        eos = next((number for number in ids if number is not None), None)
        if eos is None:
            raise UserError(
                f"--tokenizer {path}",
                rule=f"have a token that ends documents, such as {', '.join(names)}",
                found="none",
                remedy="name it by --eos",
            )
        self.info = TokenizerInfo(
            name=path.name,
            vocab_size=1 + max(self._tokenizer.get_vocab().values()),  # there may be gaps
            eos=eos,
        )

    def encode_all(self, texts: Iterable[str]) -> Iterator[Sequence[int]]:
        """Yield the tokens of each text; batches of texts are encoded in parallel."""
        following = iter(texts)
        while batch := list(islice(following, _DOCUMENTS_A_BATCH)):
            for encoded in self._tokenizer.encode_batch(batch, add_special_tokens=False):
                yield encoded.ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        return str(self._tokenizer.decode(tokens))


Tokenizer = ByteTokenizer | HuggingFaceTokenizer


def _read_tokenizer(path: Path) -> Any:  # noqa: ANN401 -- tokenizers ships no types
    try:
        import tokenizers  # noqa: PLC0415 -- only if asked for
    except ImportError as error:
        raise UserError(
            f"--tokenizer {path}",
            rule="have the package tokenizers",
            found="none",
            remedy="pip install tokenizers, or tokenize as bytes",
        ) from error
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # it raises nothing narrower
        raise UserError(
            f"--tokenizer {path}",
            rule="be bytes, or a tokenizer.json of Hugging Face's",
            found=error,
            remedy="correct the path",
        ) from error
