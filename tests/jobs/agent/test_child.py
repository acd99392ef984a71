"""A program that an agent starts: as `env` in a shell would have started it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jobs.agent.child import Streams, start
from jobs.messages import UsageError
from tests.conftest import Cluster

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[3]
ENVIRON = {"PATH": os.environ["PATH"]}


def run(path: Path, *argv: str, environ: Mapping[str, str] = ENVIRON) -> tuple[int, str]:
    """Run a program to its end; return its code and what it wrote."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    child = start(argv, environ, Streams(fd, fd), signal.SIGKILL)
    while child.code is None:
        child.reap()
    os.close(fd)
    return child.code, path.read_text()


@pytest.mark.parametrize("code", [0, 1, 127, 255])
def test_its_code(tmp_path: Path, code: int) -> None:
    """As it is, whatever a shell may have a use for."""
    assert run(tmp_path / "log", "sh", "-c", f"echo x; exit {code}") == (code, "x\n")


def test_the_signal_that_ended_it(tmp_path: Path) -> None:
    """128 and its number."""
    assert run(tmp_path / "log", "sh", "-c", "kill -9 $$") == (137, "")


def test_a_process_that_may_not_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the user has as many as they may: one line, no traceback."""

    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", fork)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        with pytest.raises(UsageError, match="found Resource temporarily unavailable; end other"):
            run(tmp_path / "log", "true")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    """127 and its name; 126 for what cannot be run."""
    code, words = run(tmp_path / "a", "no-such-program")
    assert (code, words) == (127, "launcher: 'no-such-program': No such file or directory\n")
    code, words = run(tmp_path / "b", str(tmp_path))
    assert (code, words) == (126, f"launcher: '{tmp_path}': Permission denied\n")


@pytest.mark.parametrize(
    ("first", "found"),
    [(b"#!/no/such -x\n", "found no /no/such;"), (b"#!/bin/sh\r\n", "found Windows line ends")],
)
def test_a_script_whose_interpreter_is_not_there(tmp_path: Path, first: bytes, found: str) -> None:
    """The system's own words would deny a file that is there."""
    script = tmp_path / "script"
    script.write_bytes(first + b"exit 0\n")
    script.chmod(0o755)
    code, words = run(tmp_path / "log", str(script))
    assert code == 127
    assert words.count("\n") == 1
    assert f"'{script}': its first line must name an interpreter that exists; {found}" in words


def test_a_script_without_a_first_line(tmp_path: Path) -> None:
    """The system does not know it, a shell does."""
    script = tmp_path / "script"
    script.write_text("echo $1\n")
    script.chmod(0o755)
    assert run(tmp_path / "log", str(script), "word") == (0, "word\n")


def test_the_path_is_the_childs_own(tmp_path: Path) -> None:
    """And its environment is what was given, and nothing else."""
    program = tmp_path / "mine"
    program.write_text("#!/bin/sh\n/usr/bin/env\n")
    program.chmod(0o755)
    code, words = run(tmp_path / "log", "mine", environ={"PATH": str(tmp_path), "X": "a b"})
    assert code == 0
    assert {f"PATH={tmp_path}", "X=a b"} <= set(words.splitlines())
    assert "HOME=" not in words


def test_signals_are_as_a_program_expects_them(tmp_path: Path) -> None:
    """Python ignores SIGPIPE, an agent catches TERM, a shell's background child ignores INT."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code, words = run(tmp_path / "log", "cat", "/proc/self/status")
    finally:
        signal.signal(signal.SIGINT, before)
    assert code == 0
    found = dict(line.split(":\t") for line in words.splitlines() if line.startswith("Sig"))
    libc_own = 1 << 31 | 1 << 32  # 32 and 33, which no program can set; they are inherited
    assert {int(found[name], 16) & ~libc_own for name in ("SigBlk", "SigIgn", "SigCgt")} == {0}


STARTS = """
import os, signal, sys
from jobs.agent.child import Streams, start
child = start(["sleep", "600"], dict(os.environ), Streams(1, 2), signal.SIGKILL)
print(child.pid, flush=True)
signal.pause()
"""


@pytest.mark.slow
def test_it_dies_with_its_agent() -> None:
    """`kill -9` of the agent leaves no rank behind."""
    agent = subprocess.Popen(
        [sys.executable, "-c", STARTS], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert agent.stdout is not None
    child = Path("/proc", agent.stdout.readline().strip())
    assert child.exists()
    agent.kill()
    agent.wait()
    Cluster.until(lambda: not child.exists(), 10, "the child is gone")
    agent.stdout.close()
