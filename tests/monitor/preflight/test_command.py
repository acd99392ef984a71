"""`python -m monitor preflight` by hand. What it reads, test_gpus.py and test_host.py show."""

from pathlib import Path
from typing import Any


def test_a_run_directory_that_is_not_there_is_refused(tmp_path: Path, ask: Any) -> None:
    """In one line, and none is made."""
    code, out, err = ask("preflight", tmp_path / "none")
    assert (code, out, err.count("\n")) == (64, "", 1)
    assert not [*tmp_path.iterdir()]
