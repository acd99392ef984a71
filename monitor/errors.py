"""What a user did wrong, and how a person is told: in one line."""

import os
from contextlib import suppress


class UserError(ValueError):
    """Wrong input: the command line prints the message alone and ends with code 64.

    The message has four parts: what, the rule, what was found, what to do.
    """


EXIT_USER = 64
"""The exit code for wrong input or a wrong environment: no retry helps."""


def say(message: str) -> None:
    """Tell a person, in one line; a closed stderr is nobody's trouble."""
    with suppress(OSError):
        os.write(2, f"monitor: {message}\n".encode(errors="replace"))
