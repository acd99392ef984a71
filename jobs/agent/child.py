"""A child process of an agent: forked and executed, reaped by the agent's loop."""

from __future__ import annotations

import errno
import os
import signal
from typing import TYPE_CHECKING, NamedTuple

from jobs import processes
from jobs.messages import UsageError
from rundir import codes
from rundir.hang import ASK
from rundir.text import problem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

    from jobs.loop import Loop

CAUGHT = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD, ASK)
"""The signals that an agent has a use for."""
_DEFAULT = (*CAUGHT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGXFSZ)
"""Those that a child gets as a program expects them: Python ignores the last two, a shell in whose
background an agent was started INT and QUIT."""
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


class Streams(NamedTuple):
    """Where a child's standard output and error go; its input is empty."""

    out: int
    err: int


class Child:
    """A process that was started here, and how it ended."""

    def __init__(self, pid: int) -> None:
        """Take care of the child `pid`."""
        self.pid = pid
        self.code: int | None = None
        """None while it runs."""
        self.on_end: Callable[[], object] = lambda: None

    def reap(self) -> None:
        """See whether it has ended."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = codes.of_wait_status(os.waitstatus_to_exitcode(status))
                self.on_end()

    def send(self, signum: int) -> None:
        """Signal it, if it still runs: its number cannot be another's before it is reaped."""
        if self.code is None:
            processes.send([self.pid], signum)

    def stop(self, grace_s: float, loop: Loop) -> None:
        """End it: SIGTERM, and SIGKILL if it has not ended after the grace."""
        for signum in (signal.SIGTERM, signal.SIGKILL):
            self.send(signum)
            if loop.run(lambda: self.code is not None, grace_s):
                return


def start(
    argv: Sequence[str],
    environ: Mapping[str, str],
    streams: Streams,
    parent_death: int,
    ignored: Sequence[int] = (),
) -> Child:
    """Start a program that gets the signal `parent_death` when this process dies."""
    die = processes.die_with_parent(parent_death)
    # A signal that comes before the child has its own handling would be taken for the parent's.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _DEFAULT)
    try:
        pid = os.fork()
    except OSError as error:
        raise UsageError(
            "this user must be able to start another process",
            str(error.strerror),
            "end other processes of this user, or raise their limit (ulimit -u)",
        ) from None
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return Child(pid)
    try:
        for signum in _DEFAULT:
            signal.signal(signum, signal.SIG_DFL)
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        die()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(streams.out, 1)
        os.dup2(streams.err, 2)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _execute(argv, environ)
    finally:
        os._exit(_NOT_FOUND)


def _execute(argv: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Become the program, as `env` would: a text without a first line of its own is a script."""
    try:
        try:
            os.execvpe(argv[0], list(argv), dict(environ))  # noqa: S606 -- the same
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            os.execve("/bin/sh", ["/bin/sh", *argv], dict(environ))  # noqa: S606 -- no shell's line
    except OSError as error:
        reason = _interpreter_problem(argv[0]) or error.strerror
        os.write(2, os.fsencode(f"launcher: '{argv[0]}': {reason}\n"))
        not_found = error.errno in {errno.ENOENT, errno.ENOTDIR}
        os._exit(_NOT_FOUND if not_found else _NOT_EXECUTABLE)


def _interpreter_problem(path: str) -> str:
    """Explain a script that is there and whose interpreter is not: the kernel names neither."""
    try:
        with open(path, "rb") as file:
            line = file.readline(256)
    except OSError:
        return ""
    if not line.startswith(b"#!") or not line[2:].split():
        return ""
    interpreter = os.fsdecode(line[2:].strip(b" \t\n").split(b" ")[0])
    if os.path.exists(interpreter):
        return ""
    rule = "its first line must name an interpreter that exists"
    if interpreter.endswith("\r"):
        found = "Windows line ends (\\r\\n)"
        return problem(rule, found, f"sed -i 's/\\r$//' {path}")
    return problem(rule, f"no {interpreter}", "correct that line")
