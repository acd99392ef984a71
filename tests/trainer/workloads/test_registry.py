"""Which workload takes which option."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainer.config import Config, option_name
from trainer.errors import UserError
from trainer.workloads.registry import build_workload


@pytest.mark.parametrize(
    ("workload", "given"),
    [
        ("mnist", {"mock_tokens": 99}),
        ("mnist", {"sequence_length": 8}),
        ("mnist", {"image_size": 8}),
        ("mnist", {"num_samples": 8}),
        ("imagefolder", {"num_classes": 8}),
        ("imagefolder", {"dropout": 0.5}),
        ("fake-images", {"data_dir": Path("/data")}),
        ("lm", {"image_size": 8}),
        ("lm", {"dropout": 0.5}),
    ],
)
def test_an_option_that_a_workload_would_ignore_is_refused(
    workload: str, given: dict[str, Any]
) -> None:
    """One line names the option, and the workloads that take it."""
    (name,) = given
    with pytest.raises(UserError, match=f"^{option_name(name)} must be left out unless"):
        build_workload(Config(workload=workload, **given))


def test_a_workload_of_ones_own_may_read_every_option() -> None:
    """Also one that is made of ours."""
    own = "trainer.workloads.mnist:Mnist"
    build_workload(Config(workload=own, mock_tokens=9, image_size=8))


@pytest.mark.parametrize(
    "name",
    [
        "nonesuch",
        "nonesuch.module:Class",
        "json:JSONDecoder",
        "json:Nope",
        ":Class",
        ".relative:Class",
        "a..b:Class",
        "trainer.workloads.base:Workload",
    ],
)
def test_an_unknown_workload_is_an_error_that_lists_the_known(name: str) -> None:
    """Neither a wrong name nor a class of another kind gets further than this."""
    with pytest.raises(UserError, match=f"--workload {name} must be one of mnist, imagefolder"):
        build_workload(Config(workload=name))


def test_a_module_that_ends_python_is_no_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that runs when it is imported must not end the training as if it had finished."""
    (tmp_path / "a_script.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="a module that ends Python when it is imported"):
        build_workload(Config(workload="a_script:Main"))
