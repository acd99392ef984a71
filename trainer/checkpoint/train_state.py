"""Where a run stands, besides its tensors, and how a checkpoint's state.json tells it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class Position:
    """All of a run's state that is not a tensor. The learning rate is not: it follows the step."""

    step: int = 0
    seed: int
    global_batch_size: int
    num_train_samples: int
    interval_step: int = 0
    """The step at which the current log interval began."""
    interval_num_bad: int = 0
    """How many of its steps were left out, with --on-nan."""
    skipped_steps: list[int] = field(default_factory=list)
    """Steps that are not taken: what --on-nan rollback left out."""
    last_loss: float | None = None
    best_accuracy: float | None = None
    best_step: int | None = None
    last_accuracy: float | None = None
    best_test_loss: float | None = None
    """At `best_step`; where there is no accuracy, the least so far."""
    last_test_loss: float | None = None
    num_validations_without_gain: int = 0
    validated_step: int = 0
    """The last step that was validated; a run stopped before a validation has it still to do."""
    scaler: dict[str, float] | None = None

    def validated(self, loss: float, accuracy: float | None) -> Position:
        """Return the position after a validation at this step, the best one so far or not."""
        if accuracy is not None:
            is_best = self.best_accuracy is None or accuracy > self.best_accuracy
        else:
            best = self.best_test_loss
            is_best = math.isfinite(loss) and (best is None or loss < best)
        measured = replace(
            self, validated_step=self.step, last_accuracy=accuracy, last_test_loss=loss
        )
        if not is_best:
            return replace(
                measured, num_validations_without_gain=self.num_validations_without_gain + 1
            )
        return replace(
            measured,
            best_accuracy=accuracy,
            best_test_loss=loss,
            best_step=self.step,
            num_validations_without_gain=0,
        )


@dataclass(frozen=True, kw_only=True)
class State:
    """What state.json holds."""

    position: Position
    identity: Mapping[str, object]
    """The options that change the numbers; see trainer/checkpoint/identity.py."""
    world_size: int
    """Ranks that wrote it."""
    serial: int
    """Counts the checkpoints of a run directory in the order of writing.

    The steps do not: who goes back to an older one writes smaller steps later.
    """

    def to_json(self) -> str:
        """Return the file's text."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> State:
        """Read the file's text. Raises ValueError for anything else."""
        try:
            values: dict[str, Any] = json.loads(text)
            return State(**{**values, "position": Position(**values["position"])})
        except (TypeError, KeyError) as error:
            raise ValueError(f"not a state: {error}") from error
