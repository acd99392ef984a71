"""Wrong trainer options end a job before anything is written, where our Python is at hand.

The check runs beside what else is prepared, because half a second of every start would be its own.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, NamedTuple

from jobs import programs
from jobs.messages import Exit, info, write
from rundir import codes

if TYPE_CHECKING:
    from jobs.backends.base import Backend, Layout, Surroundings
    from jobs.supervisor.arguments import Arguments

_REMEDY = "run 'make demo' once, which makes .venv here, or set DDP_PYTHON"


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
            # Before 3.11 there is no -P.
            programs.check_python("the trainer", self.python, environ, _REMEDY)
        write(2, text)
        if code != codes.FINISHED:
            raise Exit(code)
        if "--check" in self.words:
            info("options and input are right; nothing was started, because of --check")
            raise Exit(codes.FINISHED)


def start(
    here: Surroundings, backend: Backend, arguments: Arguments, layout: Layout, run_dir: str
) -> TrainerCheck:
    """Start the check, for a run that may have checkpoints. Raises UsageError."""
    environ = here.environ
    programs.check_wanted(environ, is_bare=backend.is_bare)
    python = programs.find_python(here.root, environ)
    is_needless = arguments.is_dry_run or arguments.is_own_command or arguments.is_preflight
    if is_needless or python is None or backend.has_own_image:
        return TrainerCheck(here, arguments.words, python, None)
    trainer = programs.module_command(here.root, python, "trainer", environ)
    process = subprocess.Popen(
        [*trainer, "--check", *arguments.words],
        env={**environ, "WORLD_SIZE": str(layout.world_size), "DDP_RUN_DIR": run_dir},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return TrainerCheck(here, arguments.words, python, process)
