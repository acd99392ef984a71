"""Exit codes, secrets, plain files: each written down once, for all sides."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rundir import codes, plain, secrets

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (1, "ended with code 1"),
        (137, "was killed by signal 9 (SIGKILL), code 137"),
        (139, "was killed by signal 11 (SIGSEGV), code 139"),
        (255, "ended with code 255"),
    ],
)
def test_a_code_in_words(code: int, text: str) -> None:
    """A signal is named."""
    assert codes.describe(code) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:pw@host/x", "https://me:***@host/x"),
        ("--token=hf_0123456789abcdefgh", "--token=***"),
        ("risk-0123456789abcdefgh", "risk-0123456789abcdefgh"),
    ],
)
def test_secrets_are_known_by_their_shape(text: str, shown: str) -> None:
    """Whatever the name of the variable or option."""
    assert secrets.hide_shapes(text) == shown


def test_secrets_are_known_by_the_name_of_the_option() -> None:
    """The value goes, --tokenizer's stays."""
    words = ["train.py", "--api-key", "abc", "--password=x", "--tokenizer", "bpe"]
    assert secrets.hide_words(words) == [
        *("train.py", "--api-key", "***", "--password=***", "--tokenizer", "bpe")
    ]


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    """A reader of a pipe would wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(plain.NotPlainError):
        plain.open_plain(tmp_path / "pipe")
    with pytest.raises(IsADirectoryError):
        plain.open_plain(tmp_path)


def test_rundir_needs_the_standard_library_alone() -> None:
    """It is imported where no package is installed."""
    code = "import rundir.channel, rundir.codes, rundir.heartbeat, rundir.secrets"
    env = {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-S", "-c", code], env=env, check=True)
