"""Text as one long row of tokens, and how samples are cut from it. No torch until one is asked for.

The row may be a memory map: only what a batch needs is read, and nothing is copied before. Such a
file, written in one pass, is a safetensors file, so that any program reads it:

tokens           (num_tokens,), U8, U16 or U32, the smallest that holds the vocabulary;
                 each document ends with the token `eos`
document_starts  (num_documents,), I64: where each document begins in `tokens`
__metadata__     format (trainer.tokens/1), tokenizer (bytes, or a file's name), vocab_size, eos,
                 sha256 (of the tokens' bytes)
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from rundir.plain import open_plain
from trainer.errors import UserError
from trainer.text import or_mount

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

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


FORMAT = "trainer.tokens/1"
BYTES = "bytes"
_DTYPES: dict[str, type[np.unsignedinteger[Any]]] = {
    "U8": np.uint8,
    "U16": np.uint16,
    "U32": np.uint32,
}
_HEADER_BYTES = 4096
"""The header is written last, into the room that is kept for it."""
_MAX_HEADER_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class TokenizerInfo:
    """What made the tokens."""

    name: str
    """bytes, or the name of a tokenizer.json."""
    vocab_size: int
    eos: int
    """The token that ends a document."""

    @property
    def dtype_name(self) -> str:
        """The smallest type that holds every token."""
        return next(n for n, t in _DTYPES.items() if self.vocab_size <= np.iinfo(t).max + 1)


@dataclass(frozen=True, kw_only=True)
class TokenFile:
    """A token file that is there."""

    path: Path
    tokenizer: TokenizerInfo
    row: TokenRow
    """Shape (num_tokens,), a memory map."""
    sha256: str

    def verify(self) -> None:
        """Read all of it. Raises UserError if it has changed since it was written."""
        if hashlib.sha256(self.row.data).hexdigest() != self.sha256:
            raise _error(self.path, "its tokens have changed since they were written")


class Writer:
    """Writes beside, then renames: a reader of `path` never sees half of it."""

    def __init__(self, path: Path, tokenizer: TokenizerInfo) -> None:
        self._path = path
        self._tokenizer = tokenizer
        self._dtype = np.dtype(_DTYPES[tokenizer.dtype_name]).newbyteorder("<")
        self._sha256 = hashlib.sha256()
        self._starts: list[int] = []
        self.num_tokens = 0

    @property
    def num_documents(self) -> int:
        """Documents so far."""
        return len(self._starts)

    def __enter__(self) -> Self:
        self._beside = self._path.with_name(f".{self._path.name}.partial")
        self._file = self._beside.open("wb")
        self._file.seek(_HEADER_BYTES)
        return self

    def add(self, document: Sequence[int] | bytes) -> None:
        """Append a document, and the token that ends it."""
        values = np.frombuffer(document, np.uint8) if isinstance(document, bytes) else document
        row = np.empty(len(document) + 1, self._dtype)
        row[:-1] = values
        row[-1] = self._tokenizer.eos
        self._file.write(row.data)
        self._sha256.update(row.data)
        self._starts.append(self.num_tokens)
        self.num_tokens += len(row)

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            with self._file:  # to close it writes, too, and a disk may be full by then
                if kind is None:
                    self._complete()
            if kind is None:
                self._beside.replace(self._path)
        finally:
            self._beside.unlink(missing_ok=True)

    def _complete(self) -> None:
        self._file.write(np.array(self._starts, "<i8").data)
        end = self.num_tokens * self._dtype.itemsize
        header = {
            "__metadata__": {
                "format": FORMAT,
                "tokenizer": self._tokenizer.name,
                "vocab_size": str(self._tokenizer.vocab_size),
                "eos": str(self._tokenizer.eos),
                "sha256": self._sha256.hexdigest(),
            },
            "tokens": {
                "dtype": self._tokenizer.dtype_name,
                "shape": [self.num_tokens],
                "data_offsets": [0, end],
            },
            "document_starts": {
                "dtype": "I64",
                "shape": [self.num_documents],
                "data_offsets": [end, end + 8 * self.num_documents],
            },
        }
        text = json.dumps(header).encode().ljust(_HEADER_BYTES - 8)
        self._file.seek(0)
        self._file.write(len(text).to_bytes(8, "little") + text)
        self._file.flush()
        os.fsync(self._file.fileno())


def open_tokens(path: Path) -> TokenFile:
    """Map a token file into memory. Raises UserError for any other file, and a torn one."""
    try:
        return _open(path)
    except FileNotFoundError as error:
        raise UserError(
            f"token file {path}",
            rule="be there, as python -m trainer.tokenize writes it",
            found="none",
            remedy=or_mount("write it, or correct --data-dir"),
        ) from error
    except OSError as error:
        raise _error(path, error.strerror) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _error(path, f"{type(error).__name__}: {error}") from error


def _open(path: Path) -> TokenFile:
    with open_plain(path) as file:
        size = int.from_bytes(file.read(8), "little")
        if not 0 < size <= _MAX_HEADER_BYTES:
            raise ValueError("no header of a safetensors file")
        header = json.loads(file.read(size))
        file_bytes = os.fstat(file.fileno()).st_size
    about, tokens = header["__metadata__"], header["tokens"]
    if about["format"] != FORMAT:
        raise ValueError(f"format {about['format']}")
    expected_bytes = 8 + size + header["document_starts"]["data_offsets"][1]
    if file_bytes != expected_bytes:
        raise ValueError(f"{file_bytes:,} bytes of {expected_bytes:,}")
    dtype = np.dtype(_DTYPES[tokens["dtype"]]).newbyteorder("<")
    begin, end = tokens["data_offsets"]
    if end - begin != math.prod(tokens["shape"]) * dtype.itemsize:
        raise ValueError("a shape that does not fit its bytes")
    row: TokenRow = np.memmap(path, dtype, "r", 8 + size + begin, tuple(tokens["shape"]))
    tokenizer = TokenizerInfo(
        name=about["tokenizer"], vocab_size=int(about["vocab_size"]), eos=int(about["eos"])
    )
    return TokenFile(path=path, tokenizer=tokenizer, row=row, sha256=about["sha256"])


def _error(path: Path, found: object) -> UserError:
    return UserError(
        f"token file {path}",
        rule="be whole, as python -m trainer.tokenize writes it",
        found=found,
        remedy="make it again",
    )
