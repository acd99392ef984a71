"""The batch script's own arguments: what to run, and whether to run it."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING, NamedTuple

from jobs.backends.slurm import Slurm
from jobs.checks import check_command
from jobs.messages import Exit, UsageError, write
from jobs.programs import find_python, is_new, module_command
from rundir import codes, secrets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Arguments(NamedTuple):
    """What was asked for."""

    words: list[str]
    """The trainer's options, or -- and a command of the user's own, a sweep's point included."""
    submitted: list[str]
    """The same as it was submitted, for a successor."""
    is_dry_run: bool
    is_preflight: bool = False
    """The nodes are checked, and nothing else is run."""

    @property
    def is_own_command(self) -> bool:
        """Whether a command of the user's own follows --."""
        return self.words[:1] == ["--"]


def parse(words: Sequence[str], root: str, environ: Mapping[str, str]) -> Arguments:
    """Read the arguments. Raises UsageError, and Exit after --help and --version."""
    words = list(words)
    is_dry_run = words[:1] == ["--dry-run"]
    is_preflight = words[:1] == ["--preflight"]
    if is_dry_run or is_preflight:
        del words[0]
    own = words[: words.index("--")] if "--" in words else words
    if "-h" in own or "--help" in own:
        _show_help(root, environ)
    if "--version" in own:
        write(1, f"ddp {version(root)}\n")
        raise Exit(codes.FINISHED)
    if is_preflight and words:
        shown = secrets.hide_words(words)[0]
        raise UsageError("--preflight must stand alone", f"'{shown}' behind it", "leave it away")
    _check(words, own)
    return Arguments([*words, *_sweep_point(environ)], words, is_dry_run, is_preflight)


def _check(words: list[str], own: list[str]) -> None:
    if "--dry-run" in own:
        raise UsageError("--dry-run must be the first word", "it later", "put it there")
    if words and words[0] and words[0][0] != "-":
        shown = secrets.hide_words(words)[0]
        raise UsageError(
            "the first word must be an option of the trainer, or -- before a command of your own",
            f"'{shown}'",
            f"write -- {shown} …",
        )
    if any(word.partition("=")[0] == "--out" for word in own):
        raise UsageError(
            "a job's run directory must be named by DDP_OUT and DDP_RUN_NAME",
            "--out, by which its checkpoints would lie apart from its logs",
            "set those two instead",
        )
    if own and "--" in words:
        raise UsageError(
            "-- must be the first word",
            "it later",
            "leave the trainer's options before it away, a command of your own takes none",
        )
    check_command(words)


def _sweep_point(environ: Mapping[str, str]) -> list[str]:
    """One task of a job array takes its line of the file that jobs/sweep.sh wrote."""
    path, task = environ.get("DDP_SWEEP_FILE"), Slurm(environ).array_task
    if not path or not task:
        return []
    try:
        with open(path, errors="surrogateescape") as file:
            point = file.read().split("\n")[int(task) - 1].split()
    except (OSError, ValueError, IndexError):
        point = []
    if not point:
        raise UsageError(
            f"DDP_SWEEP_FILE must have a line {task}",
            f"none in '{path}'",
            "submit with jobs/sweep.sh",
        )
    return point


def version(root: str) -> str:
    """The version, read without importing the trainer."""
    try:
        with open(f"{root}/trainer/__init__.py", encoding="utf-8") as file:
            found = re.search('^__version__ = "(.*)"$', file.read(), re.MULTILINE)
    except OSError:
        return "?"
    return found[1] if found else "?"


def _show_help(root: str, environ: Mapping[str, str]) -> None:
    """The script's own words at its head, and, where our Python is at hand, the trainer's."""
    with open(f"{root}/jobs/prelaunch.sh", encoding="utf-8") as file:
        lines = file.read().splitlines()[1:]
    head = lines[: next(at for at, line in enumerate(lines) if not line.startswith("#"))]
    text = [re.sub("^# ?", "", line) for line in head if not line.startswith("#SBATCH")]
    write(1, "".join(f"{line}\n" for line in text))
    python = find_python(root, environ)
    if python and is_new(python, environ):
        write(1, "The trainer's options (python -m trainer --help):\n")
        words = [*module_command(root, python, "trainer", environ), "--help"]
        subprocess.run(words, env=environ, stdin=subprocess.DEVNULL, check=False)
    raise Exit(codes.FINISHED)
