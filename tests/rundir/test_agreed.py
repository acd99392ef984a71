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


@pytest.mark.parametrize(
    "words",
    [
        "--logger.token=SECRET",
        "--logger.token|SECRET",
        "+wandb.token=SECRET",
        "-token|SECRET",
        "--secretKey|SECRET",
        "--wandbKey=SECRET",
        "WANDB_API_KEY=SECRET & 'SECRET'",
        "https://x/y?a=b&token=SECRET",
        "https://SECRET@host/",
        "-H|Authorization: Bearer SECRET",
        "-H|Cookie: a=SECRET; b=SECRET",
        '{"token": "SECRET"}',
        '{"lr": 1, "api_key":"SECRET"}',
        "bash|-c|true --token SECRET",
        "bash|-c|true --password 'SECRET SECRET'",
        "bash|-c|export A=b; export TOKEN=SECRET; true",
        r'bash|-c|curl -d "{\"token\": \"SECRET\"}" x',
        "python|-c|x.login(a, key='SECRET')",
        "python|-c|token = 'SECRET'",
        # settings
        "curl --token=SECRET x",
        "curl -H 'Authorization: Bearer SECRET' x",
    ],
)
def test_no_value_of_a_secret_is_shown(words: str) -> None:
    """Whether it is a word of its own, a part of one, or within a script."""
    shown = " ".join(secrets.hide_words(words.split("|")))
    assert "***" in shown
    assert "SECRET" not in shown


@pytest.mark.parametrize(
    "words",
    [
        *("--tokenizer|x", "--max-tokens|5", "--keyboard|x", "num_tokens=3", "tokenizer=bpe"),
        *("--author|me", "--passes=3", "--compass|3", "--monkey=3", "--hotkey|x", "--key-size|4"),
        *("key|x", "/a/token:/token", "docker://me@nvcr.io#nvidia/pytorch", "ssh://git@host/x"),
        *("bash|-c|cat token; ls key", "python|-c|for key in x: print(key)", "tokens: 3"),
        *("python|-c|if token == 3: pass", "https://host:80/x?mail=a@b", "curl --tokenizer=x y"),
    ],
)
def test_what_is_no_secret_is_shown(words: str) -> None:
    """A name that only resembles one, or has no value."""
    assert secrets.hide_words(words.split("|")) == words.split("|")


def test_of_a_script_the_secret_alone_is_hidden() -> None:
    """What follows it still says what ran."""
    script = """export TOKEN=abc; curl -H "Authorization: Bearer abc" 'https://x?key=abc&a=b' y"""
    assert secrets.hide_words(["bash", "-c", script])[2] == script.replace("abc", "***")


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
