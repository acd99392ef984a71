"""Resume from a checkpoint: choose it, check that it is of this run, restore everything from it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rundir.paths import step_of
from trainer.checkpoint.loading import list_together, read_together
from trainer.checkpoint.lookup import incomplete, requested
from trainer.checkpoint.tensors import destinations, restore_rank, restore_tensors
from trainer.checkpoint.train_state import differences
from trainer.data import generators
from trainer.errors import RunFailedError, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor, nn

    from trainer.checkpoint.checkpoints import Checkpoints
    from trainer.checkpoint.loading import Stored
    from trainer.checkpoint.snapshots import Snapshots
    from trainer.checkpoint.train_state import TrainState
    from trainer.distributed.mesh import Mesh

    Prepare = Callable[[Stored], dict[str, Tensor]]
    Loaded = tuple[dict[str, Tensor], TrainState]


# ---- which checkpoint ----------------------------------------------------------------------------


def load_requested(checkpoints: Checkpoints, request: str, prepare: Prepare) -> Loaded | None:
    """Load what `--resume` asks for: `auto`, `none` or a path; None means a fresh start.

    `prepare` is given what a checkpoint holds, and returns the tensors to read it into. A damaged
    one is skipped with a warning that names it, and the one before it is used.
    Raises UserError when a path was given and cannot be loaded, or when all there are are damaged,
    RunFailedError when what may be whole cannot be read, and what `prepare` raises.
    """
    checkpoints.wait()
    folder = checkpoints.folder
    if request == "none":
        checkpoints.report_resume(0, None, [])
        return None
    named = None if request == "auto" else request
    list_own = folder.paths if named is None else lambda: [requested(request, folder.path)]
    loaded, skipped = _load_first(checkpoints, list_own, prepare, named=named)
    if loaded is None and skipped:
        newest = skipped[0]
        raise UserError(
            f"--resume auto, {folder.path}",
            rule="find a checkpoint that is whole",
            found=f"all {len(skipped)} damaged, the newest, {Path(newest['path']).name}: "
            f"{newest['problem']}",
            remedy="repair one, name another run's by --resume PATH, or begin anew by "
            "--resume none",
        )
    return loaded


def load_previous(checkpoints: Checkpoints, prepare: Prepare) -> Loaded | None:
    """Load the last checkpoint of this start's own branch, which may not be the newest of all.

    A damaged one is skipped as in `load_requested`; None: there is no other one.
    """
    checkpoints.wait()
    return _load_first(checkpoints, lambda: _previous(checkpoints), prepare)[0]


def _previous(checkpoints: Checkpoints) -> list[Path]:
    """List this start's own branch, then what was written before it began, the newest first."""
    own = {step: path for step, path in checkpoints.branch.items() if path.exists()}
    before, first_step = checkpoints.folder.paths(), min(own, default=0)
    if own.get(first_step) in before:
        del before[: before.index(own[first_step]) + 1]
    else:  # it began elsewhere: what is here is of another run, or of another branch
        before.clear()
    older = [path for path in before if (step_of(path.name) or 0) < first_step]
    return [*reversed(own.values()), *older]


def _load_first(
    checkpoints: Checkpoints,
    list_own: Callable[[], Sequence[Path]],
    prepare: Prepare,
    *,
    named: str | None = None,
) -> tuple[Loaded | None, list[dict[str, str]]]:
    """Load the first that is not damaged, of what rank 0 lists; also return the damaged ones.

    One that the user `named` may not be damaged.
    """
    skipped: list[dict[str, str]] = []
    candidates = list_together(list_own, checkpoints.group)
    for path in candidates:
        loaded, problem = read_together(path, prepare, checkpoints.group)
        if loaded is not None:
            stored, tensors = loaded
            state = stored.state.position
            checkpoints.continue_from(path, state)
            checkpoints.report_resume(state.step, path, skipped)
            return (tensors, state), skipped
        if named is not None:
            raise incomplete(named, problem)
        skipped.append({"path": str(path), "problem": problem})
        checkpoints.skip(path, problem)
    if not candidates:
        checkpoints.report_resume(0, None, [])
    return None, skipped


# ---- what is restored ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """Where to begin."""

    state: TrainState
    loss_sum: Tensor
    """This rank's losses in the log interval so far, a scalar on the device."""


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Loads into one model and its optimizer."""

    checkpoints: Checkpoints
    mesh: Mesh
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    identity: Mapping[str, Any]
    """The run's options; without a seed, the run keeps the one it has."""
    is_forced: bool
    """Take a checkpoint of a run with other options, too."""
    snapshots: Snapshots
    elsewhere: Mapping[str, torch.Size] = field(default_factory=dict)
    """What of the model's state only other ranks have: the other stages of a pipeline."""

    def __call__(self, request: str, fresh: TrainState) -> Resumed:
        """Load a newer snapshot of this job, or what `--resume` asks for, else begin at `fresh`.

        Raises UserError when the checkpoint is of a run with other options, or of another model.
        """
        loaded = self._load_snapshot(request)
        loaded = loaded or load_requested(self.checkpoints, request, self._prepare)
        if loaded is None:
            generators.seed_all(generators.derive_seed(fresh.seed, "rank", self.mesh.dp_rank))
            return Resumed(state=fresh, loss_sum=torch.zeros((), device=self.mesh.device))
        return self._restore(*loaded, fresh)

    def _load_snapshot(self, request: str) -> Loaded | None:
        if not self.snapshots.every:
            return None
        # The job's starts have no other request than `auto` once it has written a checkpoint.
        own = self.checkpoints.folder.paths if request == "auto" else list
        newest = next(iter(list_together(own, self.checkpoints.group)), None)
        after = 0 if newest is None else step_of(newest.name) or 0
        found = self.snapshots.load(after, self._prepare_own)
        if found is None:
            return None
        tensors, state, path = found
        self.checkpoints.continue_after(newest)
        self.checkpoints.report_resume(state.step, path, [])
        return tensors, state

    def go_back(self, state: TrainState) -> Resumed:
        """Load the last checkpoint of this start, which has come to `state` since.

        Raises RunFailedError when it can no longer be loaded.
        """
        self.snapshots.clear()
        loaded = load_previous(self.checkpoints, self._prepare)
        if loaded is None:
            raise RunFailedError.of(
                "--on-nan rollback",
                rule="have a checkpoint to go back to",
                found="none that can be loaded",
                remedy="see what was skipped, and start again",
            )
        return self._restore(*loaded, state)

    def _restore(
        self, tensors: Mapping[str, Tensor], state: TrainState, fresh: TrainState
    ) -> Resumed:
        state = replace(  # only `--force` makes a difference
            state,
            seed=self.identity.get("seed", state.seed),
            global_batch_size=fresh.global_batch_size,
            num_train_samples=fresh.num_train_samples,
        )
        restore_tensors(tensors, self.model, self.optimizer)
        if state.scaler and self.scaler.is_enabled():
            self.scaler.load_state_dict(state.scaler)
        loss_sum = restore_rank(
            tensors,
            rank=self.mesh.ranks.rank,
            world_size=self.mesh.ranks.world_size,
            device=self.mesh.device,
            seed=generators.derive_seed(state.seed, "rank", self.mesh.dp_rank, state.step),
        )
        return Resumed(state=state, loss_sum=loss_sum)

    def _prepare(self, stored: Stored) -> dict[str, Tensor]:
        self._check_options(stored)
        return destinations(stored.entries, self.model, self.mesh.ranks.rank, self.elsewhere)

    def _prepare_own(self, stored: Stored) -> dict[str, Tensor]:
        """As for a checkpoint; but of a snapshot each rank sees its own part of the model only."""
        self._check_options(stored)
        return destinations(stored.entries, self.model, self.mesh.ranks.rank)

    def _check_options(self, stored: Stored) -> None:
        found = differences(self.identity, stored.state.identity)
        if found and not self.is_forced:
            raise UserError(
                f"--resume, {stored.path}",
                rule="have the options that the run began with",
                found="; ".join(found),
                remedy="give them again, or --force to go on nevertheless, or --resume none",
            )
