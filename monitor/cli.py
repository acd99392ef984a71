"""The command line: parse, build, run, close. Only the subcommand that was named is imported."""

from __future__ import annotations

import argparse
import io
import signal
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from monitor import __version__
from monitor.errors import UserError, emit
from rundir import codes, output
from rundir.text import problem

if TYPE_CHECKING:
    from collections.abc import Sequence

_PROGRAM = "python -m monitor"

COMMANDS = {
    "record": ("recorder.command", "sample the GPUs and the host into a log"),
    "report": (
        "report.report",
        "report how jobs used their GPUs, from logs of ours or of nvidia-smi dmon",
    ),
    "watch": ("live.session", "see all nodes of a job live, in a terminal"),
    "plot": ("plot.plot", "draw a run into a .png or .svg"),
    "html": ("page.html", "write a run as one page to look into, offline"),
    "export": ("export.export", "write logs and runs for other programs: metrics or rows"),
    "diagnose": ("report.findings", "find what is wrong with a run, by rules, and what to do"),
    "compose": ("runs.compose", "write run.json from a run's events"),
    "why": ("runs.why", "show on one screen why a run ended"),
    "preflight": (
        "preflight.command",
        "report whether this node is fit for a job, to its supervisor",
    ),
}
"""Of each its module, with `add_options(parser)` and `run(options) -> int`, and its purpose.

`run` raises UserError where the input is wrong.
"""


class _Parser(argparse.ArgumentParser):
    """argparse, with our exit code, one line, and --version."""

    def __init__(self, **about: Any) -> None:  # noqa: ANN401 -- as argparse takes it
        super().__init__(**about)
        self.add_argument("--version", action="version", version=f"ddp {__version__}")

    def error(self, message: str) -> NoReturn:
        hint = f"run `{self.prog} --help` for what there is"
        raise UserError("the command line must be as --help shows", message, hint)


def main(argv: Sequence[str]) -> int:
    """Run a subcommand; its exit code, or 64 with one line if the input is wrong."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a file's name need not be text
        sys.stdout.reconfigure(errors="backslashreplace")
    code = 0
    try:
        _check_python()
        chosen = argv[0] if argv else ""
        options = _parser(chosen).parse_args(argv[1:] if chosen in COMMANDS else argv)
        code = int(options.run(options))
        if sys.stdout is not None:  # as with `>&-`
            sys.stdout.flush()
    except UserError as error:
        emit(str(error))
        return codes.USAGE
    except ModuleNotFoundError as error:
        remedy = "install ours with `make demo`, and use .venv/bin/python"
        found = f"no {error.name} in {sys.executable}"
        emit(problem("Python must have our packages", found, remedy))
        return codes.USAGE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        output.drop()  # the reader of our output has seen enough
    except OSError as error:
        if not output.is_full(error):
            raise
        output.drop()
        emit(problem("the output must have room", error.strerror, "make room, or write elsewhere"))
        return codes.USAGE
    return code


def _check_python() -> None:
    """Refuse one whose dataclasses know less: `why` and `compose` need no package of others."""
    if sys.version_info < (3, 11):  # noqa: UP036 -- by hand, whatever the host has
        found = f"{sys.version.split()[0]} at {sys.executable}"
        raise UserError("Python must be 3.11 or later", found, "use .venv/bin/python")


def _parser(chosen: str) -> _Parser:
    """Make that of a subcommand; of any other word the one that lists them."""
    if chosen in COMMANDS:
        path, purpose = COMMANDS[chosen]
        module = import_module(f"monitor.{path}")
        about = f"{purpose[0].upper()}{purpose[1:]}."
        parser = _Parser(prog=f"{_PROGRAM} {chosen}", description=about)
        module.add_options(parser)
        parser.set_defaults(run=module.run)
        return parser
    about = "Watch the GPUs of a job, and see afterwards what it made of them."
    parser = _Parser(prog=_PROGRAM, description=about)
    commands = parser.add_subparsers(required=True, metavar="|".join(COMMANDS))
    for name, (_, purpose) in COMMANDS.items():
        commands.add_parser(name, help=purpose)
    return parser
