"""Read a checkpoint: on one process, or on all ranks together.

All ranks together distinguish damage from what one node cannot read just now: a run that took the
second for the first would resume from an older checkpoint, and later remove the good one.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch

from rundir import plain
from trainer.checkpoint import manifest
from trainer.checkpoint.host_copies import is_out_of_memory
from trainer.checkpoint.layout import STATE_FILE
from trainer.checkpoint.manifest import DamagedError, UnknownError, UnreadableError, is_unreadable
from trainer.checkpoint.tensor_names import MODEL
from trainer.checkpoint.train_state import State
from trainer.errors import RunFailedError, UserError, causes, short_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from trainer.checkpoint.process_group import ProcessGroup

T = TypeVar("T")

_NUM_TRIES, _PAUSE_S = 3, 2.0


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What a checkpoint holds, without its values."""

    path: Path
    state: State
    entries: Mapping[str, tuple[torch.Size, torch.dtype]]
    """Shape and type of each tensor."""


# ---- one process ---------------------------------------------------------------------------------


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
    manifest.check_digests(path, {name: records[name] for name in sorted(names)})


def read_index(path: Path) -> Stored:
    """Read all but the tensors of a checkpoint that was verified.

    Raises UnreadableError, or UnknownError for what this version does not know or let in.
    """
    from trainer.checkpoint.safe_reader import SafeReader  # noqa: PLC0415 -- a second of imports

    try:
        state = State.from_json(plain.read_text(path / STATE_FILE))
        return Stored(path=path, state=state, entries=SafeReader(path).entries())
    except Exception as error:
        raise _explain(error) from error


def read_into(path: Path, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Fill `tensors` with the values of their names, and return them.

    Every rank reads by itself, and only what it asks for. Raises what `read_index` raises.
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
        raise _explain(next(iter(error.failures.values()))[0]) from error
    except Exception as error:
        raise _explain(error) from error
    return tensors


def _explain(error: BaseException) -> DamagedError:
    """Classify what was raised while reading; torch wraps errors of the system and of memory.

    The files have been verified, so nothing here is damage.
    """
    for cause in causes(error):
        is_unread = isinstance(cause, OSError) and is_unreadable(cause)
        if is_unread or is_out_of_memory(cause):
            return UnreadableError(short_line(cause))
    return UnknownError(short_line(error))


def read_named(stored: Stored, prefix: str) -> dict[str, Tensor]:
    """Read every tensor whose name begins with `prefix`, whole, into plain memory."""
    tensors = {
        name: torch.empty(shape, dtype=dtype)
        for name, (shape, dtype) in stored.entries.items()
        if name.startswith(prefix)
    }
    read_into(stored.path, tensors)
    return tensors


@contextlib.contextmanager
def damage_is_users(what: object) -> Iterator[None]:
    """Translate DamagedError into UserError, for a checkpoint that the user named as `what`."""
    try:
        yield
    except DamagedError as error:
        raise UserError(
            str(what), rule="be a complete checkpoint", found=error, remedy="name another one"
        ) from error


def open_verified(checkpoint: Path) -> Stored:
    """Verify a checkpoint and read its index. Raises UserError if it is damaged."""
    with damage_is_users(checkpoint):
        verify(checkpoint)
        return read_index(checkpoint)


def read_weights(stored: Stored) -> dict[str, Tensor]:
    """Read a model's weights, by their own names. Raises UserError if they cannot be read."""
    with damage_is_users(stored.path):
        tensors = read_named(stored, MODEL)
    return {name.removeprefix(MODEL): tensor for name, tensor in tensors.items()}


# ---- all ranks together --------------------------------------------------------------------------


def list_together(list_own: Callable[[], Sequence[Path]], group: ProcessGroup) -> list[Path]:
    """Return the paths that rank 0 lists, on all ranks.

    Raises RunFailedError, on all ranks, if rank 0 cannot list them: there may be some.
    """
    problem = ""
    for _ in _tries():
        paths: list[Path] = []
        if group.rank == 0:
            try:
                paths, problem = [*list_own()], ""
            except OSError as error:
                problem = short_line(error)
        paths, problem = group.share((paths, problem))
        if not problem:
            return paths
    raise RunFailedError.of(
        "checkpoints",
        rule="be a folder that rank 0 can read",
        found=problem,
        remedy="there may be some, so nothing is begun anew: look at the file system of that node",
    )


def read_together(
    path: Path, prepare: Callable[[Stored], dict[str, Tensor]], group: ProcessGroup
) -> tuple[tuple[Stored, dict[str, Tensor]] | None, str]:
    """Return what the checkpoint holds, or None and what is wrong with it, alike on all ranks.

    `prepare` is given its index, and returns the tensors to read it into. Raises what that raises;
    and on all ranks, if some cannot read what may be whole: RunFailedError, or UserError where
    this version does not know it.
    """
    try:
        stored = _retried(path, lambda: _verify_together(path, group))
        tensors = prepare(stored)
        _retried(path, lambda: _read_together(path, tensors, group))
    except DamagedError as error:
        return None, str(error)
    return (stored, tensors), ""


def _retried(path: Path, work: Callable[[], T]) -> T:
    """Do `work`, which ends alike on all ranks, until it succeeds or the checkpoint is damaged."""
    found: object = ""
    for _ in _tries():
        try:
            return work()
        except UnknownError as error:
            raise UserError(
                f"checkpoint {path}",
                rule="be one that this version, with its torch, can read",
                found=error,
                remedy="go on with the version that wrote it, or from an older one by "
                "--resume PATH, or begin anew by --resume none",
            ) from error
        except UnreadableError as error:
            found = error
    raise RunFailedError.of(
        f"checkpoint {path}",
        rule="be readable by every rank",
        found=found,
        remedy="it may be whole, so nothing is begun over it: look at the file system of that node",
    )


def _tries() -> Iterator[int]:
    for number in range(_NUM_TRIES):
        if number:
            time.sleep(_PAUSE_S)
        yield number


def _verify_together(path: Path, group: ProcessGroup) -> Stored:
    """Verify it, each rank a part of the files; rank 0 decides what is damaged.

    It verifies what another rank found damaged itself: that node may see old sizes, or no file at
    all where something is not mounted.
    """

    def verify_parts(*parts: int) -> None:
        for part in parts:
            verify(path, part=part, num_parts=group.world_size)

    def verify_own() -> Stored:
        verify_parts(group.rank)
        return read_index(path)

    stored, own = _attempt(verify_own)
    problems = group.gather(own)
    if stored is not None and not any(problems):
        return stored
    decided = problems[0]
    if decided is None:
        doubted = [rank for rank, problem in enumerate(problems) if _is_damage(problem)]
        confirmed = _attempt(lambda: verify_parts(*doubted))[1] if group.rank == 0 else None
        decided = group.share(confirmed)
    elif not _is_damage(decided):
        decided = None
    raise decided or _first(problems)


def _read_together(path: Path, tensors: Mapping[str, Tensor], group: ProcessGroup) -> None:
    """Read into `tensors`; raises on all ranks if one of them has a problem."""
    problems = group.gather(_attempt(lambda: read_into(path, tensors))[1])
    if any(problems):
        # All files have been verified: what reading finds damaged is so for every rank that asks.
        raise next(filter(_is_damage, problems), None) or _first(problems)


def _attempt(work: Callable[[], T]) -> tuple[T | None, DamagedError | None]:
    try:
        return work(), None
    except DamagedError as error:
        return None, error


def _is_damage(problem: DamagedError | None) -> bool:
    """Whether it is sure that the checkpoint is not whole."""
    return type(problem) is DamagedError


def _first(problems: Sequence[DamagedError | None]) -> DamagedError:
    """Return the first rank's problem, with its rank; damage may be that node's alone."""
    rank, problem = next((r, p) for r, p in enumerate(problems) if p is not None)
    kind = UnreadableError if _is_damage(problem) else type(problem)
    return kind(f"on rank {rank}: {problem}")
