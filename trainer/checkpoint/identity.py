"""What a run is: the options that change its numbers. A resume with others would be another run."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainer.config import Config

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


def identity_of(config: Config, num_train_samples: int) -> dict[str, object]:
    """Return the identity of the run that these options describe, as JSON values.

    Without a seed, unless it was asked for as an option: else a run keeps the one it began with.
    """
    options = {name: getattr(config, name) for name in OPTIONS}
    seed = {} if config.seed is None else {"seed": config.seed}
    return {**options, "num_train_samples": num_train_samples, **seed}


def fingerprint(identity: Mapping[str, object]) -> str:
    """Return 12 hexadecimal digits that two runs share if they are one."""
    text = json.dumps(identity, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def differences(now: Mapping[str, object], then: Mapping[str, object]) -> list[str]:
    """Say each difference in words. An option that one side does not know is none."""
    return [
        f"{name}: {_say(value)} where the run began with {_say(then[name])}"
        for name, value in now.items()
        if name in then and then[name] != value
    ]


def _say(value: object) -> str:
    return "the default" if value in ("", None) else str(value)
