"""`python -m monitor preflight` by hand. What it reads, test_gpus.py and test_host.py show."""

from pathlib import Path
from typing import Any

import pytest


def test_a_run_directory_that_is_not_there_is_refused(tmp_path: Path, ask: Any) -> None:
    """In one line, and none is made."""
    code, out, err = ask("preflight", tmp_path / "none")
    assert (code, out, err.count("\n")) == (64, "", 1)
    assert not [*tmp_path.iterdir()]


def test_limits_that_are_not_in_the_table_are_refused(
    tmp_path: Path, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line, before anything is read."""
    monkeypatch.setenv("DDP_PREFLIGHT_LIMITS", "flops=1")
    code, out, err = ask("preflight", tmp_path)
    assert (code, out, err.count("\n")) == (64, "", 1)
    assert "DDP_PREFLIGHT_LIMITS must name checks of the table; found 'flops'" in err
    assert not [*tmp_path.iterdir()]
