"""What a user did wrong, as one line for a person."""

import os
from contextlib import suppress

from rundir.text import printable, problem


class UserError(ValueError):
    """Wrong input: the command line prints the message alone and ends with code 64.

    Args:
        rule: what must hold, with its subject.
        found: what was found instead.
        remedy: what to do.

    """

    def __init__(self, rule: object, found: object, remedy: object) -> None:
        # The parts are kept, so that it can be pickled; a name's line break is shown, not lost.
        super().__init__(*(printable(str(part)) for part in (rule, found, remedy)))

    def __str__(self) -> str:
        """Return the one form of a message."""
        return problem(*self.args)


def emit(message: str) -> None:
    """Write a line for a person, in one line; a closed stderr is no error."""
    with suppress(OSError):
        os.write(2, f"monitor: {printable(message)}\n".encode(errors="replace"))
