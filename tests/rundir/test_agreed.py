"""Exit codes, secrets, plain files: each written down once, for all sides."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rundir import codes, events, plain, secrets

if TYPE_CHECKING:
    from collections.abc import Callable

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


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("E: no route to postgres://me:SECRET@db/x", "E: no route to postgres://me:***@db/x"),
        ("E: password='SECRET' is too short", "E: password=*** is too short"),
        ("E: 401, Authorization: Bearer SECRET", "E: 401, Authorization: Bearer ***"),
        ("E: not permitted: hf_SECRETSECRETSECRET", "E: not permitted: ***"),
        ("E: password authentication failed", "E: password authentication failed"),
        ("E: unexpected key: layer.0", "E: unexpected key: layer.0"),
        (
            "E: tokenizer.pad_token = tokenizer.eos_token",
            "E: tokenizer.pad_token = tokenizer.eos_token",
        ),
    ],
)
def test_of_an_error_only_what_is_a_secret_for_sure_is_hidden(message: str, shown: str) -> None:
    """A key or a token in it is mostly the program's own."""
    assert secrets.hide_in_message(message) == shown


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    """A reader of a pipe would wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(plain.NotPlainError):
        plain.open_plain(tmp_path / "pipe")
    with pytest.raises(IsADirectoryError):
        plain.open_plain(tmp_path)


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR])
def test_no_pipe_is_opened_to_write(flags: int, tmp_path: Path) -> None:
    """Without a reader it would keep for ever who opens it."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"No such device|a pipe or a device"):
        plain.plain_opener(str(tmp_path / "pipe"), flags)


@pytest.mark.parametrize(
    "write", [plain.open_log, lambda path: events.append(path, b"{}\n")], ids=["log", "events"]
)
def test_nothing_is_written_through_a_link(write: Callable[[str], object], tmp_path: Path) -> None:
    """In a directory of several users it may lead to a file that its maker may not write."""
    (tmp_path / "mine").write_text("kept")
    (tmp_path / "link").symlink_to("mine")
    with pytest.raises(OSError, match="symbolic link"):
        write(str(tmp_path / "link"))
    assert (tmp_path / "mine").read_text() == "kept"


def test_rundir_needs_the_standard_library_alone() -> None:
    """It is imported where no package is installed."""
    code = "import rundir.channel, rundir.codes, rundir.heartbeat, rundir.secrets"
    env = {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-S", "-c", code], env=env, check=True)
