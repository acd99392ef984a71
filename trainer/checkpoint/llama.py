"""The Llama that a checkpoint of --workload lm holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer.checkpoint import loading
from trainer.errors import UserError
from trainer.workloads.llama_hf import shape_named

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from trainer.workloads.llama_presets import LlamaShape


@dataclass(frozen=True, kw_only=True)
class StoredLlama:
    """All that it takes to build it again."""

    shape: LlamaShape
    sequence_length: int
    weights: Mapping[str, Tensor]
    step: int
    model: str
    """As --model had it: a preset's name, a folder, or nothing for the default."""


def read_llama(checkpoint: Path) -> StoredLlama:
    """Read it, verified. Raises UserError if it is damaged, or of something else."""
    stored = loading.open_verified(checkpoint)
    identity = stored.state.identity
    if identity.get("workload") != "lm":
        raise UserError(
            str(checkpoint),
            rule="be a checkpoint of --workload lm",
            found=identity.get("workload"),
            remedy="name another one",
        )
    shape = shape_named(str(identity["model"]))
    length = identity.get("sequence_length") or shape.max_sequence_length
    assert isinstance(length, int)  # noqa: S101 -- as the options have it
    return StoredLlama(
        shape=shape,
        sequence_length=length,
        weights=loading.read_weights(stored),
        step=stored.state.position.step,
        model=str(identity["model"]),
    )
