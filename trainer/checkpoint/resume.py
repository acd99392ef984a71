"""Go on where a checkpoint stands: is it of this run, and then everything as it was."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from trainer.checkpoint.identity import differences
from trainer.checkpoint.tensors import destinations, restore_rank, restore_tensors
from trainer.data import generators
from trainer.errors import RunFailedError, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from trainer.checkpoint.checkpoints import Checkpoints
    from trainer.checkpoint.loading import Stored
    from trainer.checkpoint.train_state import Position
    from trainer.distributed.mesh import Mesh


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """Where to begin."""

    position: Position
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
    """What the run is by its options; without a seed, the run keeps the one it has."""
    is_forced: bool
    """Take a checkpoint of a run with other options, too."""
    elsewhere: Mapping[str, torch.Size] = field(default_factory=dict)
    """What of the model's state only other ranks have: the other stages of a pipeline."""

    def __call__(self, wish: str, fresh: Position) -> Resumed:
        """Load what `--resume` asks for, else begin at `fresh`.

        Raises UserError when the checkpoint is of a run with other options, or of another model.
        """
        loaded = self.checkpoints.load(wish, self._prepare)
        if loaded is None:
            generators.seed_all(generators.derive_seed(fresh.seed, "rank", self.mesh.dp_rank))
            return Resumed(position=fresh, loss_sum=torch.zeros((), device=self.mesh.device))
        return self._restore(*loaded, fresh)

    def go_back(self, position: Position) -> Resumed:
        """Load what this start of the run stands on, from which it has come to `position`.

        Raises RunFailedError when it can no longer be loaded.
        """
        loaded = self.checkpoints.load_back(self._prepare)
        if loaded is None:
            raise RunFailedError(
                "--on-nan rollback: a checkpoint to go back to; found none that can be loaded; "
                "see what was skipped, and start again"
            )
        return self._restore(*loaded, position)

    def _restore(
        self, tensors: Mapping[str, Tensor], position: Position, fresh: Position
    ) -> Resumed:
        position = replace(  # only `--force` makes a difference
            position,
            seed=self.identity.get("seed", position.seed),
            global_batch_size=fresh.global_batch_size,
            num_train_samples=fresh.num_train_samples,
        )
        restore_tensors(tensors, self.model, self.optimizer)
        if position.scaler and self.scaler.is_enabled():
            self.scaler.load_state_dict(position.scaler)
        loss_sum = restore_rank(
            tensors,
            rank=self.mesh.ranks.rank,
            world_size=self.mesh.ranks.world_size,
            device=self.mesh.device,
            seed=generators.derive_seed(position.seed, "rank", self.mesh.dp_rank, position.step),
        )
        return Resumed(position=position, loss_sum=loss_sum)

    def _prepare(self, stored: Stored) -> dict[str, Tensor]:
        found = differences(self.identity, stored.state.identity)
        if found and not self.is_forced:
            raise UserError(
                f"--resume, {stored.path}",
                rule="the options that the run began with",
                found="; ".join(found),
                remedy="give them again, or --force to go on nevertheless, or --resume none",
            )
        return destinations(stored.entries, self.model, self.mesh.ranks.rank, self.elsewhere)
