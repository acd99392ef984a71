"""Files of tokens: written in one pass, read as a memory map.

A token file is a safetensors file, so that any program reads it:

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

from trainer.errors import UserError
from trainer.text import or_mount

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainer.workloads.tokens import TokenRow

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
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _error(path, f"{type(error).__name__}: {error}") from error


def _open(path: Path) -> TokenFile:
    with path.open("rb") as file:
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
