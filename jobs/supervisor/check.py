"""Wrong trainer options end a job before anything is written, where our Python is at hand.

The check runs beside what else is prepared, because half a second of every start would be its own.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, NamedTuple

from jobs.messages import Exit, UsageError, info, write
from jobs.programs import find_python, lack, module_command, version, which
from rundir import codes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobs.backends.base import Backend, Layout, Surroundings
    from jobs.supervisor.arguments import Arguments


class TrainerCheck(NamedTuple):
    """A check that runs."""

    here: Surroundings
    words: list[str]
    python: str | None
    process: subprocess.Popen[bytes] | None
    """None: there is nothing to check, or nobody to do it."""

    def finish(self) -> None:
        """Wait for its end. Raises UsageError and Exit."""
        if self.process is None or self.python is None:
            return
        text = self.process.communicate()[0].decode(errors="replace")
        code, environ = codes.of_wait_status(self.process.returncode), self.here.environ
        if code not in (codes.FINISHED, codes.USAGE):
            _check_python(self.python, environ)
        write(2, text)
        if code != codes.FINISHED:
            raise Exit(code)
        if "--check" in self.words:
            info("options and input are right; nothing was started, because of --check")
            raise Exit(codes.FINISHED)


def _check_python(python: str, environ: Mapping[str, str]) -> None:
    """Check what ran the check, whose options no Python before 3.11 knows. Raises UsageError."""
    remedy = "run 'make demo' once, which makes .venv here, or set DDP_PYTHON"
    lacks = lack(python, environ, remedy)
    if lacks:
        rule, found, remedy = lacks
        raise UsageError(f"the trainer {rule}", found, remedy)


def start(
    here: Surroundings, backend: Backend, arguments: Arguments, layout: Layout, run_dir: str
) -> TrainerCheck:
    """Start the check, for a run that may have checkpoints. Raises UsageError."""
    environ = here.environ
    _check_wanted(environ, is_bare=backend.is_bare)
    python = find_python(here.root, environ)
    is_needless = arguments.is_dry_run or arguments.is_own_command or arguments.is_preflight
    if is_needless or python is None or backend.has_own_image:
        return TrainerCheck(here, arguments.words, python, None)
    process = subprocess.Popen(
        [*module_command(here.root, python, "trainer", environ), "--check", *arguments.words],
        env={**environ, "WORLD_SIZE": str(layout.world_size), "DDP_RUN_DIR": run_dir},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return TrainerCheck(here, arguments.words, python, process)


def _check_wanted(environ: Mapping[str, str], *, is_bare: bool) -> None:
    """Check the Python that the user set. Raises UsageError."""
    wanted = environ.get("DDP_PYTHON")
    path = which(wanted, environ) if wanted else None
    if wanted and is_bare and path is None:  # in a container it may be the host's
        raise UsageError(
            "DDP_PYTHON must be a program", f"none at '{wanted}'", "correct it, or unset it"
        )
    if path and version(path, environ) == "?":
        raise UsageError(
            "DDP_PYTHON must be a Python",
            f"that '{wanted} -V' shows no version of one",
            "correct it, or unset it",
        )
