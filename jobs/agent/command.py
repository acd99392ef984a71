"""What a rank runs: our trainer, or a command of the user's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from jobs import programs
from jobs.checks import check_command
from jobs.messages import UsageError
from rundir import channel

if TYPE_CHECKING:
    from collections.abc import Mapping


class Command(NamedTuple):
    """A program and its arguments."""

    argv: list[str]
    is_trainer: bool


def is_preflight(environ: Mapping[str, str]) -> bool:
    """Whether this task checks its node, and is no rank."""
    return bool(environ.get("DDP_PREFLIGHT_STEP"))


def build(words: list[str], environ: Mapping[str, str], root: str) -> Command:
    """Build a rank's command from the launcher's own words.

    Raises:
        UsageError: there is no command, or no Python for ours.

    """
    if words[:1] == ["--"] and not is_preflight(environ):
        check_command(words)
        return Command(words[1:], is_trainer=False)
    part = "the preflight" if is_preflight(environ) else "the trainer"
    python, remedy = programs.find_python(root, environ), "set DDP_PYTHON, or run in the image"
    if not python:
        raise UsageError(f"{part} needs Python", f"none on {environ['DDP_NODE']}", remedy)
    is_checked = environ.get(channel.SUPERVISED) == "1"  # but in its image there may be another
    if not is_checked or not programs.is_new(python, environ):
        programs.check_python(part, python, environ, remedy)
    if is_preflight(environ):
        check = programs.module_command(root, python, "trainer.preflight", environ)
        return Command(check, is_trainer=False)
    trainer = programs.module_command(root, python, "trainer", environ)
    return Command([*trainer, *words], is_trainer=True)
