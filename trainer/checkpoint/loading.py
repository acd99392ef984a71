"""Look into a checkpoint, and read it. Everything here works on one process, without a cluster."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rundir import plain
from trainer.checkpoint import manifest
from trainer.checkpoint.host_copies import is_lack_of_memory
from trainer.checkpoint.layout import STATE_FILE
from trainer.checkpoint.manifest import DamagedError, UnknownError, UnreadableError, is_unreadable
from trainer.checkpoint.tensor_names import MODEL
from trainer.checkpoint.train_state import State
from trainer.errors import UserError, causes, short_line

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What a checkpoint holds, without its values."""

    path: Path
    state: State
    entries: Mapping[str, tuple[torch.Size, torch.dtype]]
    """Shape and type of each tensor."""


def verify(path: Path, *, part: int = 0, num_parts: int = 1) -> None:
    """Compare all sizes, and the SHA-256 of this part of the files and of what describes them.

    Raises DamagedError.
    """
    records = manifest.read(path)
    descriptions = {STATE_FILE, ".metadata"}
    for name in descriptions:
        if name not in records:
            raise DamagedError(f"{manifest.FILE} does not name {name}")
    manifest.check_sizes(path, records)
    names = {*sorted(records)[part::num_parts], *descriptions}
    manifest.check_digests(path, records, sorted(names))


def look_into(path: Path) -> Stored:
    """Read all but the tensors of a checkpoint that was verified.

    Raises UnreadableError, or UnknownError for what this version does not know or let in.
    """
    from trainer.checkpoint.safe_reader import SafeReader  # noqa: PLC0415 -- a second of imports

    try:
        state = State.from_json(plain.read_text(path / STATE_FILE))
        return Stored(path=path, state=state, entries=SafeReader(path).entries())
    except Exception as error:
        raise _problem(error) from error


def read_into(path: Path, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Fill `tensors` with the values of their names, and return them.

    Raises what `look_into` raises.

    Every rank reads all by itself, and only what it asks for: nobody waits for anybody.
    """
    from torch.distributed.checkpoint.api import CheckpointException  # noqa: PLC0415 -- as above
    from torch.distributed.checkpoint.state_dict_loader import load  # noqa: PLC0415

    from trainer.checkpoint.safe_reader import SafeReader  # noqa: PLC0415

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            warnings.filterwarnings("ignore", category=FutureWarning)
            load(dict(tensors), storage_reader=SafeReader(path), no_dist=True)
    except CheckpointException as error:  # it is no Exception
        raise _problem(next(iter(error.failures.values()))[0]) from error
    except Exception as error:
        raise _problem(error) from error
    return tensors


def read_named(stored: Stored, prefix: str) -> dict[str, Tensor]:
    """Read every tensor whose name begins with `prefix`, whole, into plain memory."""
    tensors = {
        name: torch.empty(shape, dtype=dtype)
        for name, (shape, dtype) in stored.entries.items()
        if name.startswith(prefix)
    }
    read_into(stored.path, tensors)
    return tensors


def read_weights(checkpoint: Path) -> tuple[Stored, dict[str, Tensor]]:
    """Read a model's weights by their own names, verified. Raises UserError if they are damaged."""
    try:
        verify(checkpoint)
        stored = look_into(checkpoint)
        tensors = read_named(stored, MODEL)
    except DamagedError as error:
        raise UserError(
            str(checkpoint), rule="a complete checkpoint", found=error, remedy="name another one"
        ) from error
    return stored, {name.removeprefix(MODEL): tensor for name, tensor in tensors.items()}


def _problem(error: BaseException) -> DamagedError:
    """Say what was raised while reading; torch wraps what the system or the memory said.

    What was read is what was written: whatever else is wrong is no damage.
    """
    for cause in causes(error):
        is_unread = isinstance(cause, OSError) and is_unreadable(cause)
        if is_unread or is_lack_of_memory(cause):
            return UnreadableError(short_line(cause))
    return UnknownError(short_line(error))
