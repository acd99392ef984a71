"""Read a checkpoint, all ranks together; tell damage from what a node only cannot read just now.

Who takes the one for the other goes on from an older checkpoint, and removes the good one later.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from trainer.checkpoint import loading
from trainer.checkpoint.manifest import DamagedError, UnknownError, UnreadableError
from trainer.errors import RunFailedError, UserError, short_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torch import Tensor

    from trainer.checkpoint.loading import Stored
    from trainer.checkpoint.process_group import Peers
    from trainer.distributed.mesh import Mesh

T = TypeVar("T")

_NUM_TRIES, _PAUSE_S = 3, 2.0


@dataclass(frozen=True)
class _Problem:
    """What a rank has met."""

    text: str
    kind: type[DamagedError]

    @property
    def is_damage(self) -> bool:
        """Whether it is sure that the checkpoint is not whole."""
        return self.kind is DamagedError


def read_together(
    path: Path, prepare: Callable[[Stored], dict[str, Tensor]], peers: Peers
) -> tuple[tuple[Stored, dict[str, Tensor]] | None, str]:
    """Return what the checkpoint holds, or None and what is wrong with it, alike on all ranks.

    `prepare` looks at what it holds, and returns the tensors to read it into. Raises what that
    raises; and on all ranks, if some cannot read what may be whole: RunFailedError, or UserError
    where this version does not know it.
    """
    stored, problem = _tried(path, lambda: _verified(path, peers))
    if stored is None:
        return None, problem
    tensors = prepare(stored)
    read, problem = _tried(path, lambda: _agreed(peers, lambda: loading.read_into(path, tensors)))
    return (None if read is None else (stored, tensors)), problem


def list_together(
    look: Callable[[], Sequence[Path]], mesh: Mesh, meet: Callable[[], Peers]
) -> list[Path]:
    """Return the paths that rank 0 sees, on all ranks; they meet only if there are any at all.

    Raises RunFailedError, on all ranks, if rank 0 cannot look: there may be some.
    """
    paths: list[Path] = []
    problem = ""
    for num_tried in range(_NUM_TRIES):
        if num_tried:
            time.sleep(_PAUSE_S)
        if mesh.ranks.is_main:
            paths, problem = _listed(look)
        (count,) = mesh.max([float(len(paths) or bool(problem))])
        if not count:
            return []
        paths, problem = meet().share((paths, problem))
        if not problem:
            return paths
    raise RunFailedError(
        f"checkpoints: a folder that rank 0 can read; found {problem}; there may be some, so "
        "nothing is begun anew: look at the file system of that node"
    )


def _listed(look: Callable[[], Sequence[Path]]) -> tuple[list[Path], str]:
    try:
        return list(look()), ""
    except OSError as error:
        return [], short_line(error)


def _tried(
    path: Path, work: Callable[[], tuple[T | None, _Problem | None]]
) -> tuple[T | None, str]:
    """Do `work`, in which all ranks agree, until it is done or what is there is damaged."""
    found = ""
    for num_tried in range(_NUM_TRIES):
        if num_tried:
            time.sleep(_PAUSE_S)
        result, problem = work()
        if problem is None:
            return result, ""
        if problem.is_damage:
            return None, problem.text
        if problem.kind is UnknownError:
            raise UserError(
                f"checkpoint {path}",
                rule="one that this version, with its torch, can read",
                found=problem.text,
                remedy="go on with the version that wrote it, or from an older one by "
                "--resume PATH, or begin anew by --resume none",
            )
        found = problem.text
    raise RunFailedError(
        f"checkpoint {path}: can be read by every rank; found {found}; it may be whole, so "
        "nothing is begun over it: look at the file system of that node"
    )


def _verified(path: Path, peers: Peers) -> tuple[Stored | None, _Problem | None]:
    """Verify it, each rank a part of the files; what is damaged is for rank 0 to say.

    What another rank has found, rank 0 looks at itself: that node may see old sizes, or no file at
    all where something is not mounted.
    """

    def look() -> Stored:
        loading.verify(path, part=peers.rank, num_parts=peers.world_size)
        return loading.look_into(path)

    result, found = _met(look)
    told = peers.gather(found)
    first = _first(told)
    if first is None:
        return result, None
    if told[0] is not None:
        return None, told[0] if told[0].is_damage else first
    doubted = [rank for rank, one in enumerate(told) if one is not None and one.is_damage]
    own = _met(lambda: _verify_parts(path, doubted, peers))[1] if peers.rank == 0 else None
    return None, peers.share(own) or first


def _verify_parts(path: Path, parts: Sequence[int], peers: Peers) -> None:
    for part in parts:
        loading.verify(path, part=part, num_parts=peers.world_size)


def _agreed(peers: Peers, work: Callable[[], T]) -> tuple[T | None, _Problem | None]:
    """Return the result, or None and the problem of the first rank that had one that is damage.

    If none had, the first problem. A point of synchronisation.
    """
    result, found = _met(work)
    told = peers.gather(found)
    # All files have been verified: what reading finds damaged is so for every rank that asks.
    problem = next((one for one in told if one is not None and one.is_damage), _first(told))
    return (result if problem is None else None), problem


def _met(work: Callable[[], T]) -> tuple[T | None, _Problem | None]:
    try:
        return work(), None
    except DamagedError as error:
        return None, _Problem(str(error), type(error))


def _first(told: Sequence[_Problem | None]) -> _Problem | None:
    """The first rank's problem, with its rank; damage may be that node's alone."""
    for rank, problem in enumerate(told):
        if problem is not None:
            kind = UnreadableError if problem.is_damage else problem.kind
            return _Problem(f"on rank {rank}: {problem.text}", kind)
    return None
