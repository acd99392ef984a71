"""The suite's own manners."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = """
import pytest
def test_passes(): pass
@pytest.mark.skip(reason="no moon")
def test_by_mark(): pass
def test_by_call(): pytest.skip("no moon")
def test_other(): pytest.skip("no sun")
"""


@pytest.mark.slow
def test_skipped_tests_are_counted_right_before_the_closing_line(tmp_path: Path) -> None:
    """The line before pytest's own last one counts the skipped tests by reason."""
    shutil.copy(Path(__file__).parent / "conftest.py", tmp_path)
    (tmp_path / "test_it.py").write_text(SUITE)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-ra", tmp_path],
        capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60,
    )  # fmt: skip
    count, closing = result.stdout.splitlines()[-2:]
    assert count == "3 tests skipped here: no moon x2, no sun x1"
    assert "1 passed, 3 skipped" in closing
