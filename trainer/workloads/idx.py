"""The IDX format, in which MNIST comes: a magic number, the dimensions, then the bytes.

Source of the format: the page of the MNIST database, "File formats for the MNIST database".
"""

from __future__ import annotations

import gzip
import struct
import zlib
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from trainer.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

_UNSIGNED_BYTE = 0x08


@dataclass(frozen=True)
class IdxArray:
    """An array of unsigned bytes in C order."""

    shape: tuple[int, ...]
    data: bytes


def read_idx(path: Path, num_dims: int) -> IdxArray:
    """Read an IDX file of unsigned bytes with `num_dims` dimensions, plain or `.gz`.

    Raises UserError when it cannot be read or is damaged.
    """
    try:
        raw = path.read_bytes()
        if path.suffix == ".gz":
            raw = gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(path, "a readable file", error) from error
    size_of_header = 4 + 4 * num_dims
    if len(raw) < size_of_header:
        raise _damaged(path, f"a header of {size_of_header} bytes", f"{len(raw)} bytes")
    magic, *shape = struct.unpack_from(f">I{num_dims}I", raw)
    if magic != (_UNSIGNED_BYTE << 8) + num_dims:
        raise _damaged(path, f"magic number {(_UNSIGNED_BYTE << 8) + num_dims}", magic)
    data = raw[size_of_header:]
    if len(data) != prod(shape):
        raise _damaged(path, f"{prod(shape)} bytes after the header", f"{len(data)} bytes")
    return IdxArray(shape=tuple(shape), data=data)


def _damaged(path: Path, rule: str, found: object) -> UserError:
    remedy = "replace it, or remove it to have it downloaded again"
    return UserError(f"damaged IDX file {path}", rule=f"be {rule}", found=found, remedy=remedy)
