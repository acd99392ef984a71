"""What a user did wrong, and how a person is told: in one line."""

import os
from contextlib import suppress


class UserError(ValueError):
    """Wrong input: the command line prints the message alone and ends with code 64.

    The message has four parts: what, the rule, what was found, what to do.
    """


EXIT_USER = 64
"""The exit code for wrong input or a wrong environment: no retry helps."""


def printable(text: str) -> str:
    r"""Write as `\x1b`, `\n` or `\udcff` what moves a terminal's cursor, ends a line or is no text.

    Names of files and what logs tell are anybody's: they must not reach a terminal as they are.
    """
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode("ascii")


def say(message: str) -> None:
    """Tell a person, in one line; a closed stderr is nobody's trouble."""
    with suppress(OSError):
        os.write(2, f"monitor: {printable(message)}\n".encode(errors="replace"))
