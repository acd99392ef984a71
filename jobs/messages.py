"""What people read: lines on standard error, and a mistake of the user's as one of them."""

from __future__ import annotations

import os

from rundir.text import problem

TYPE_CHECKING = False

PROGRAM = "prelaunch"


class UsageError(Exception):
    """The user's input or environment is wrong: one line, exit code 64, no retry.

    Args:
        rule: What must hold, with its subject: "MASTER_PORT must be free on gpu01".
        found: What was found instead: "29500 taken".
        remedy: What to do: "unset it to have a free one chosen".

    """

    def __init__(self, rule: str, found: str, remedy: str) -> None:
        super().__init__(problem(rule, found, remedy))


class Exit(Exception):  # noqa: N818 -- the program's end, and not always an error
    """The program ends with a code; what there was to say has been said."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def info(text: str, program: str = PROGRAM) -> None:
    """Write a line to standard error. A log on a full disk must not end the job."""
    write(2, f"{program}: {text}\n")


def write(fd: int, text: str) -> None:
    """Write to a descriptor, and lose what it does not take."""
    data = os.fsencode(text)
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError:
        pass


def one_line(text: object) -> str:
    """Join the lines of a message."""
    return " ".join(str(text).splitlines())
