"""A workload by its name, or by `package.module:Class`."""

from __future__ import annotations

import importlib
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.config import option_name
from trainer.errors import UserError
from trainer.workloads.base import Workload

if TYPE_CHECKING:
    from trainer.config import Config

BUILT_IN = {
    "mnist": "trainer.workloads.mnist:Mnist",
    "imagefolder": "trainer.workloads.images:ImageFolder",
    "fake-images": "trainer.workloads.images:FakeImages",
    "lm": "trainer.workloads.language:Language",
}
"""The workloads that come with the trainer."""

_READS = {
    "mnist": {"data_dir", "dropout"},
    "imagefolder": {"data_dir", "image_size"},
    "fake-images": {"image_size", "num_samples", "num_classes"},
    "lm": {"data_dir", "sequence_length", "mock_tokens"},
}
"""Of the options that are not for all of them, those that each takes note of."""


def build_workload(config: Config) -> Workload:
    """Build the workload that `config` names.

    Raises UserError when there is none such, or for an option that it would ignore.
    """
    name = config.workload
    _check_options(config)
    module_name, _, class_name = BUILT_IN.get(name, name).partition(":")
    if not class_name or not all(module_name.split(".")):
        raise _error(name, "no such name")
    if name not in BUILT_IN and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # `python -P`, as the launcher runs us, leaves it out
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise _error(name, error) from error
    except SystemExit as error:  # a script without `if __name__ == "__main__"`
        raise _error(name, f"a module that ends Python when it is imported ({error})") from error
    cls = getattr(module, class_name, None)
    if cls is None:
        raise _error(name, f"{module_name} has no {class_name}")
    if not (isinstance(cls, type) and issubclass(cls, Workload)):
        raise _error(name, f"{class_name} is no such subclass")
    if cls.__abstractmethods__:
        raise _error(name, f"{class_name} lacks {', '.join(sorted(cls.__abstractmethods__))}")
    return cls(config)


def _check_options(config: Config) -> None:
    if config.workload not in _READS:
        return  # one of the user's own may read all
    for field in fields(config):
        takers = [name for name, reads in _READS.items() if field.name in reads]
        is_given = getattr(config, field.name) != field.default
        if takers and is_given and config.workload not in takers:
            raise UserError(
                option_name(field.name),
                rule=f"be left out unless --workload is one of {', '.join(takers)}",
                found=f"it with {config.workload}, which takes no note of it",
                remedy="leave it out, or choose another workload",
            )


def _error(name: str, found: object) -> UserError:
    return UserError(
        f"--workload {name}",
        rule=f"be one of {', '.join(BUILT_IN)}, or package.module:Class, "
        "a subclass of trainer.workloads.base.Workload",
        found=found,
        remedy="correct the name or the class, or install the package",
    )
