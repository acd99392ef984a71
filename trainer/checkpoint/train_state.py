"""The train state besides tensors, and the options that make a run what it is: state.json."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field, fields, replace
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainer.config import Config

Part = TypeVar("Part", "TrainState", "State")


@dataclass(frozen=True, kw_only=True)
class TrainState:
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

    def validated(self, loss: float, accuracy: float | None) -> TrainState:
        """Return the position after a validation at this step, the best one so far or not."""
        if accuracy is not None:
            is_best = self.best_accuracy is None or accuracy > self.best_accuracy
        else:
            best = self.best_test_loss
            is_best = math.isfinite(loss) and (best is None or loss < best)
        measured = replace(
            self,
            validated_step=self.step,
            last_accuracy=accuracy,
            last_test_loss=loss,
            num_validations_without_gain=0 if is_best else self.num_validations_without_gain + 1,
        )
        if not is_best:
            return measured
        return replace(measured, best_accuracy=accuracy, best_test_loss=loss, best_step=self.step)


@dataclass(frozen=True, kw_only=True)
class State:
    """What state.json holds."""

    position: TrainState
    identity: Mapping[str, object]
    """The options that change the numbers; see `identity_of`."""
    world_size: int
    """Ranks that wrote it."""
    serial: int
    """Counts the checkpoints of a run directory in the order of writing.

    The steps do not: a run that goes back to an older one writes smaller steps later.
    """

    def to_json(self) -> str:
        """Return the file's text."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> State:
        """Read the file's text. Raises ValueError for anything else."""
        try:
            values: dict[str, Any] = json.loads(text)
            position = _checked(TrainState(**values["position"]))
            return _checked(State(**{**values, "position": position}))
        except (TypeError, KeyError) as error:
            raise ValueError(f"not a state: {error}") from error


_KINDS: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "int | None": (int, NoneType),
    "float | None": (int, float, NoneType),
    "list[int]": (list,),
    "dict[str, float] | None": (dict, NoneType),
    "Mapping[str, object]": (dict,),
    "TrainState": (TrainState,),
}
"""What a field of this annotation may be in a file, which anybody may have written."""


def _checked(part: Part) -> Part:
    """Return it; raises TypeError where a field is of another kind."""
    for known in fields(part):
        value = getattr(part, known.name)
        if not isinstance(value, _KINDS[str(known.type)]):
            raise TypeError(f"{known.name} is {value!r}")
    return part


OPTIONS = (
    "workload",
    "model",
    "global_batch_size",
    "lr",
    "min_lr",
    "schedule",
    "warmup_steps",
    "decay_fraction",
    "optimizer",
    "weight_decay",
    "beta1",
    "beta2",
    "eps",
    "dropout",
    "precision",
    "clip_grad_norm",
    "image_size",
    "num_samples",
    "num_classes",
    "sequence_length",
    "mock_tokens",
)
"""All other options may change freely: how long, on how many ranks, in which microbatches, what is
validated, logged and kept, and where things lie."""


_RESOLVED = "resolved"


def identity_of(
    config: Config, num_train_samples: int, resolved: Mapping[str, object]
) -> dict[str, object]:
    """Return the identity of the run that these options describe, as JSON values.

    Without a seed, unless it was asked for as an option: else a run keeps the one it began with.
    `resolved` is what the workload makes of them.
    """
    options = {name: getattr(config, name) for name in OPTIONS}
    seed = {} if config.seed is None else {"seed": config.seed}
    values = {_RESOLVED: dict(resolved)} if resolved else {}
    return {**options, "num_train_samples": num_train_samples, **seed, **values}


def fingerprint(identity: Mapping[str, object]) -> str:
    """Return 12 hexadecimal digits that two runs share if they are one."""
    text = json.dumps(identity, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def differences(now: Mapping[str, object], then: Mapping[str, object]) -> list[str]:
    """Describe each difference. An option that one side does not know is none.

    What options resolve to is compared in their place, where both sides know it.
    """
    if _RESOLVED in now and _RESOLVED in then:
        now, then = _resolved(now), _resolved(then)
    return [
        f"{name}: {_described(value)} where the run began with {_described(then[name])}"
        for name, value in now.items()
        if name in then and then[name] != value and name != _RESOLVED
    ]


def _resolved(identity: Mapping[str, Any]) -> dict[str, object]:
    return {**identity, **identity[_RESOLVED]}


def _described(value: object) -> str:
    return "the default" if value in ("", None) else str(value)
