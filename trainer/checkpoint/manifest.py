"""manifest.json: the size and the SHA-256 of every other file of a checkpoint."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rundir import plain

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FILE = "manifest.json"
_VERSION = 1
_BLOCK_BYTES = 8 << 20
"""So large that other threads wait for the interpreter only some hundred times a gigabyte."""

_GONE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)
"""Errors that prove that a file is not there, or something else in its place."""

_NOT_SUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)
"""Errors of SMB and some FUSE file systems when a folder is flushed."""


class DamagedError(Exception):
    """A checkpoint is not what was written; one line says what is wrong."""


class UnreadableError(DamagedError):
    """It cannot be read here and now, so its state is not known: it may be whole."""


class UnknownError(DamagedError):
    """It is what was written, and this version does not know what that is: no damage."""


def is_unreadable(error: OSError) -> bool:
    """Whether an error of reading leaves open what is there, such as ESTALE, EIO or EACCES."""
    return not isinstance(error, plain.NotPlainError) and error.errno not in _GONE


@dataclass(frozen=True)
class FileRecord:
    """What a file must be."""

    bytes: int
    sha256: str


def seal(path: Path) -> FileRecord:
    """Force a file to the disk and return its record."""
    flush(path)
    return examine(path)


def examine(path: Path) -> FileRecord:
    """Read a file and return its record."""
    with path.open("rb", buffering=0) as file:
        digest, block, size_bytes = hashlib.sha256(), bytearray(_BLOCK_BYTES), 0
        while count := file.readinto(block):
            digest.update(memoryview(block)[:count])
            size_bytes += count
    return FileRecord(size_bytes, digest.hexdigest())


def write(folder: Path, records: Mapping[str, FileRecord]) -> None:
    """Write the manifest, and force it and the folder's list of files to the disk."""
    files = {name: asdict(records[name]) for name in sorted(records)}
    path = folder / FILE
    path.write_text(json.dumps({"version": _VERSION, "files": files}, indent=1) + "\n", "utf-8")
    flush(path)
    flush(folder)


def read(folder: Path) -> dict[str, FileRecord]:
    """Read the manifest.

    Raises DamagedError if there is none that can be understood, UnknownError for a newer one.
    """
    try:
        content = json.loads(plain.read_text(folder / FILE))
        if content["version"] > _VERSION:
            raise UnknownError(f"{FILE} is of version {content['version']}, newer than {_VERSION}")
        records = {name: FileRecord(**values) for name, values in content["files"].items()}
    except OSError as error:
        raise _unreadable(FILE, error) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(f"{FILE} cannot be read: {error}") from error
    if any("/" in name or name in ("", ".", "..") for name in records):
        raise DamagedError(f"{FILE} names files outside its folder")
    return records


def check_sizes(folder: Path, records: Mapping[str, FileRecord]) -> None:
    """Check the kind and the size of every file: cheap.

    Raises DamagedError, naming the first wrong one.
    """
    for name, expected in records.items():
        try:
            size_bytes = plain.size_bytes(folder / name)
        except OSError as error:
            raise _unreadable(name, error) from error
        if size_bytes != expected.bytes:
            raise DamagedError(f"{name} has {size_bytes} of {expected.bytes} bytes")


def check_digests(folder: Path, records: Mapping[str, FileRecord]) -> None:
    """Read every file. Raises DamagedError, naming the first that has changed."""
    for name, expected in records.items():
        try:
            found = examine(folder / name)
        except OSError as error:
            raise _unreadable(name, error) from error
        if found != expected:
            raise DamagedError(f"{name} has changed since it was written: its SHA-256 differs")


def _unreadable(name: str, error: OSError) -> DamagedError:
    if isinstance(error, plain.NotPlainError | IsADirectoryError):
        return DamagedError(f"{name} is no file")
    kind = UnreadableError if is_unreadable(error) else DamagedError
    return kind(f"{name}: {error.strerror or error}")


def flush(path: Path) -> None:
    """Force a file or a folder to the disk; a folder only where the file system can do that."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        if not (is_folder and error.errno in _NOT_SUPPORTED):
            raise
    finally:
        os.close(descriptor)
