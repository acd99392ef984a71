"""What can go wrong, and the exit code it ends with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

EXIT_FINISHED: Final = 0
"""The run reached its last step."""
EXIT_USER: Final = 64
"""The user's input or environment is wrong: a retry would end the same way."""
EXIT_FAILED: Final = 70
"""A rank failed."""
EXIT_STOPPED: Final = 75
"""Stopped on request, with a checkpoint written: requeue me."""

MAX_LENGTH: Final = 300
"""Of an error that is told short, in characters."""


def one_line(error: BaseException) -> str:
    """Return an error's type and words, whatever line breaks are in them."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def short_line(error: BaseException) -> str:
    """Return the same of an error whose words may be pages, as torch's may: its beginning."""
    return one_line(error)[:MAX_LENGTH]


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and what it was raised from or in."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


class UserError(Exception):
    """Something the user did, told in one line of four parts: what, rule, found, remedy.

    It is not a ValueError, so that no library on the way takes it for one of its own.
    """

    def __init__(self, what: str, *, rule: str, found: object, remedy: str) -> None:
        super().__init__(" ".join(f"{what}: {rule}; found {found}; {remedy}".split()))


def missing_package(error: ModuleNotFoundError, python: str) -> UserError:
    """Say which package `python`, the interpreter at hand, lacks."""
    return UserError(
        "Python",
        rule="one with the packages that pyproject.toml names",
        found=f"no {error.name} in {python}",
        remedy="run `make demo` once, which installs them into .venv, or install it there, "
        "or name another Python (DDP_PYTHON)",
    )


class RunFailedError(Exception):
    """The run cannot go on; one line that says it all, and all ranks know."""


class CheckpointError(RunFailedError):
    """A run trained to its end, and what it came to could not be kept."""
