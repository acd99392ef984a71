"""Environments with other people's packages, beside the torch that is here."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests import environment

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.fixture
def requirements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file without a package, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "mine" / "requirements.txt"
    path.parent.mkdir()
    path.write_text("")
    return path


def test_it_is_made_once_and_sees_this_torch(
    requirements: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second request starts nothing; other packages make another environment."""
    python = environment.python_with(requirements)
    where = "import importlib.util as u; print(u.find_spec('torch').origin)"
    seen, here = (
        subprocess.run([who, "-c", where], capture_output=True, check=True).stdout
        for who in (python, sys.executable)
    )
    assert seen == here
    monkeypatch.setattr(environment, "_build", lambda *_: pytest.fail("built again"))
    assert environment.python_with(requirements) == python
    requirements.write_text("# another\n")
    with pytest.raises(pytest.fail.Exception, match="built again"):
        environment.python_with(requirements)


def test_without_a_network_it_says_so_in_one_line(requirements: Path) -> None:
    """And what was begun counts for nothing: the next request tries again."""
    requirements.write_text("--index-url http://127.0.0.1:9/\nnot-here-at-all\n")
    for _ in range(2):
        with pytest.raises(ValueError, match=f"found {environment.UNREACHABLE}; run it once"):
            environment.python_with(requirements)
