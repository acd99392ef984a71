"""A Python that cannot run our parts: one clear line, before anything is written."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.jobs.said import one_line

if TYPE_CHECKING:
    from conftest import Scripts

pytestmark = pytest.mark.slow

BY_HAND = (("launcher.sh", "--epochs", "3"), ("launcher.sh", "--", "true"))


def test_a_python_without_our_packages(scripts: Scripts) -> None:
    """A first try before `make demo` is told what to do, without a traceback."""
    scripts.fake("bare-python", f'exec "{sys._base_executable}" -S "$@"')  # noqa: SLF001
    result = scripts.run("prelaunch.sh", "--epochs", "1", DDP_PYTHON="bare-python")
    assert result.code == 64
    assert "found no tyro in" in result.err
    assert "make demo" in result.err
    assert "Traceback" not in result.err
    assert not list(scripts.directory.glob("out"))


def test_a_python_that_is_none(scripts: Scripts) -> None:
    """A success of another program's would be the trainer's, with nothing trained."""
    scripts.fake("no-python", "exit 0")
    path = scripts.directory / "fake-bin" / "no-python"
    for text in (path.read_text(), "no first line that names an interpreter\n"):
        path.write_text(text)
        for words in (("prelaunch.sh", "--epochs", "3"), *BY_HAND):
            result = scripts.run(*words, DDP_PYTHON=str(path))
            assert result.code == 64
            assert "DDP_PYTHON must be a Python; found that" in one_line(result.err)
            assert not list(scripts.directory.glob("out"))


@pytest.mark.parametrize("script", ["prelaunch.sh", "launcher.sh"])
def test_a_python_that_is_too_old(scripts: Scripts, script: str) -> None:
    """It does not know the options that we start it with."""
    scripts.fake("old-python", 'if [[ $1 == -V ]]; then echo "Python 3.9.2"; else exit 2; fi')
    result = scripts.run(script, "--epochs", "1", DDP_PYTHON="old-python")
    assert result.code == 64
    assert "needs Python 3.11 or later; found Python 3.9.2" in one_line(result.err)
    assert not list(scripts.directory.glob("out"))


def test_help_where_no_python_knows_the_trainers_options(scripts: Scripts) -> None:
    """The script's own words, without a complaint of that Python's."""
    scripts.fake("old-python", "echo 'Unknown option: -P' >&2; exit 2")
    shown = scripts.run("prelaunch.sh", "--help", DDP_PYTHON="old-python")
    assert (shown.code, shown.err, "trainer's options" in shown.out) == (0, "", False)
    assert "jobs/prelaunch.sh" in shown.out


def test_one_that_is_too_old_where_a_rank_runs(scripts: Scripts) -> None:
    """An image's, which its agent finds first; a preflight's, too."""
    scripts.fake("old-python", 'if [[ $1 == -V ]]; then echo "Python 3.9.2"; else exit 2; fi')
    old = {"DDP_PYTHON": "old-python"}
    rank = scripts.run("launcher.sh", "--epochs", "1", **old, DDP_NPROC_PER_NODE="1")
    assert (rank.code, rank.out) == (64, "")
    assert "the trainer needs Python 3.11 or later; found Python 3.9.2 at" in one_line(rank.err)
    check = scripts.run("prelaunch.sh", "--preflight", **old)
    assert "launcher: the preflight needs Python 3.11 or later; found Python 3.9.2" in check.err
    assert (check.code, check.out) == (70, "")
    assert check.err.endswith("and nothing was checked: its step ended with code 64\n")


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("PYTHONHOME", "/nonexistent", "No module named 'encodings'"),
        ("PYTHONHASHSEED", "abc", "PYTHONHASHSEED must be"),
    ],
)
def test_a_python_that_does_not_start(scripts: Scripts, name: str, value: str, told: str) -> None:
    """Its own error is quoted, for its version is right; where a monitor lacks it, too."""
    for python in ({}, {"DDP_PYTHON": sys._base_executable}):  # noqa: SLF001
        result = scripts.run("prelaunch.sh", "--epochs", "1", **python, **{name: value})
        assert result.code == 64
        assert "needs a Python that starts; found '" in one_line(result.err)
        assert told in one_line(result.err)
        assert not list(scripts.directory.glob("out"))
    env = {"DDP_MONITOR": "1", "DDP_NPROC_PER_NODE": "1", name: value} | python
    result = scripts.run("prelaunch.sh", "--", "true", **env)
    (line,) = (line for line in result.err.splitlines() if "no monitor on" in line)
    assert "it needs a Python that starts; found '" in line
    assert told in line
